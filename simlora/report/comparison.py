"""The comparison of engines: a table for the terminal, and the same as Markdown, HTML and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from simlora.report import facts, units
from simlora.report.markup import element, page, row, table

if TYPE_CHECKING:
    from simlora.plan.compare import Comparison, Played


COST = ("engine", "SLO", "GPUs", "busy", "$/month", "vs dedicated", "$/1M tokens")
LATENCY = ("engine", "in SLO", "req/s", "TTFT p50", "TTFT p99", "TPOT mean", "TPOT p99")
COLUMNS = COST + LATENCY[1:]
STYLE = """body { max-width: 74rem; }
h3 { font-size: .95rem; margin: 1.2rem 0 .2rem; } ul { margin: 0; padding-left: 1.2rem; }
tr.misses { color: var(--dim); } tr.misses td:nth-child(2) { color: var(--bad); }
th:nth-child(2), td:nth-child(2) { text-align: left; }
.bars { display: grid; grid-template-columns: auto 1fr auto; gap: .3rem .8rem; align-items: center; }
.bars i { display: block; height: 1.1rem; min-width: 2px; border-radius: 3px; background: var(--bar); }
"""
MAX_REPLICAS = 8
"""Replicas that the report's JSON lists of each engine."""
MARKDOWN, HTML, JSON = "comparison.md", "comparison.html", "comparison.json"


def cells(comparison: Comparison, played: Played) -> list[str]:
    """One row of the table, in the order of COLUMNS. GPUs: all that are paid for, or how many are up on average where
    deployments sleep."""
    summary, cost = played.summary, played.summary["cost"]
    ratio = comparison.cost_ratio(played)
    asleep = cost["gpus_mean"] < cost["gpus"]
    return [
        played.engine + (" *" if summary["calibration"]["extrapolated"] else ""),
        "meets" if played.meets_slo else "misses",
        units.number(cost["gpus_mean"] if asleep else cost["gpus"]) + (" up" if asleep else ""),
        units.percent(summary["gpu"]["busy_fraction"]),
        units.usd(played.usd_per_month),
        units.MISSING if ratio is None else f"{ratio * 100:.3g} %",
        units.usd(cost["usd_per_1m_tokens"]),
        units.percent(summary["slo"]["attainment"]),
        units.number(summary["request_throughput_rps"]),
        units.seconds(summary["ttft_s"]["p50"]),
        units.seconds(summary["ttft_s"]["p99"]),
        units.seconds(summary["tpot_s"]["mean"]),
        units.seconds(summary["tpot_s"]["p99"]),
    ]


def verdict(comparison: Comparison) -> str:
    """One sentence: which engine, or which at one price, and at what price."""
    best, equal = comparison.best(), [played.engine for played in comparison.cheapest()]
    if best is None:
        return "no engine meets the SLO with these GPUs and settings"
    saved = comparison.cost_ratio(best)
    told = saved is not None and best.engine != "dedicated"
    against = f", {saved * 100:.3g} % of dedicated deployments" if told and saved is not None else ""
    attainment = units.percent(best.summary["slo"]["attainment"])
    price = f"{units.usd(best.usd_per_month)} a month{against}"
    if len(equal) == 1:
        return f"{best.engine} is the cheapest that meets the SLO ({attainment} in SLO): {price}"
    names = f"{', '.join(equal[:-1])} and {equal[-1]}"
    return f"{names} are the cheapest that meet the SLO, {best.engine} best ({attainment} in SLO): {price}"


def comparison_tables(comparison: Comparison) -> RenderableType:
    """What the command prints."""
    parts: list[RenderableType] = [Text(title(comparison), style="dim"), Text(verdict(comparison), style="bold")]
    for columns in (COST, LATENCY):
        parts += [Text(), _table(comparison, columns)]
    parts.append(Text())
    for played in comparison.played:
        parts.append(Text(played.engine, style="bold"))
        parts += [Padding(Text(reason), (0, 0, 0, 2)) for reason in played.reasons]
    for engine, reason in comparison.unsupported.items():
        parts.append(Text.assemble((engine, "bold"), (" cannot serve this: ", "yellow"), reason))
    if extrapolated(comparison):
        parts.append(Text(extrapolated(comparison), style="yellow"))
    return Group(*parts)


def _table(comparison: Comparison, columns: tuple[str, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    for name in columns:
        table.add_column(name, justify="left" if name in COLUMNS[:2] else "right", no_wrap=True)
    for played in comparison.played:
        row = dict(zip(COLUMNS, cells(comparison, played), strict=True))
        table.add_row(*(row[name] for name in columns), style=None if played.meets_slo else "dim")
    return table


def title(comparison: Comparison) -> str:
    """What was compared."""
    scenario = comparison.scenario
    return (
        f"{scenario.name} · {scenario.model_spec.name} on {scenario.gpu_spec.name} · "
        f"{scenario.adapters.count:,} adapters · {comparison.requests:,} requests · seed {scenario.seed}"
    )


def extrapolated(comparison: Comparison) -> str:
    """Whose figures rest on terms that nobody measured for that engine and GPU; empty if nobody's do."""
    told = []
    for played in comparison.played:
        terms = [fact.label for fact in facts.extrapolated(played.summary)]
        if terms:
            told.append(f"{played.engine}: {', '.join(terms)}")
    return f"* extrapolated beyond what was measured: {'; '.join(told)}" if told else ""


def comparison_texts(comparison: Comparison, data: dict[str, Any]) -> dict[str, str]:
    """File name -> text of the report; data: what as_json gave. A thousand deployments are listed in `--json` only."""
    short = {engine: _with_few_replicas(summary) for engine, summary in data.items()}
    return {MARKDOWN: markdown(comparison), HTML: html(comparison), JSON: json_text(short)}


def _with_few_replicas(summary: dict[str, Any]) -> dict[str, Any]:
    replicas = summary.get("replicas", [])
    if len(replicas) <= MAX_REPLICAS:
        return summary
    return {**summary, "replicas": replicas[:MAX_REPLICAS], "replicas_left_out": len(replicas) - MAX_REPLICAS}


def json_text(data: dict[str, Any]) -> str:
    return json.dumps(data, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def markdown(comparison: Comparison) -> str:
    """comparison.md."""
    lines = [
        f"# {comparison.scenario.name}: engines compared",
        "",
        title(comparison),
        "",
        f"**{verdict(comparison)}.**",
    ]
    lines += ["", "| " + " | ".join(COLUMNS) + " |", "|---|---" + "|---:" * (len(COLUMNS) - 2) + "|"]
    lines += ["| " + " | ".join(cells(comparison, played)) + " |" for played in comparison.played]
    lines += ["", "## Why", ""]
    for played in comparison.played:
        lines += [f"**{played.engine}**", "", *(f"- {reason}" for reason in played.reasons), ""]
    for engine, reason in comparison.unsupported.items():
        lines += [f"**{engine}** cannot serve this: {reason}", ""]
    if extrapolated(comparison):
        lines += [extrapolated(comparison).replace("*", "\\*", 1), ""]
    return "\n".join(lines)


def html(comparison: Comparison) -> str:
    """comparison.html: one self-contained page."""
    return page(f"{comparison.scenario.name}: engines compared", STYLE, _body(comparison))


def _body(comparison: Comparison) -> Iterator[str]:
    sentence = verdict(comparison)
    yield element("p", title(comparison), "dim")
    yield element("h1", f"{sentence[:1].upper()}{sentence[1:]}.")
    rows = (row(cells(comparison, played), "" if played.meets_slo else "misses") for played in comparison.played)
    yield table(COLUMNS, rows)
    if extrapolated(comparison):
        yield element("p", extrapolated(comparison), "warn")
    bars = _bars(comparison)
    if bars:
        yield '<h2>Dollars a month</h2>\n<div class="bars">'
        for engine, usd, length in bars:
            yield f'{element("span", engine)}<i style="width: {length:.2f}%"></i>{element("span", usd)}'
        yield "</div>"
    yield "<h2>Why</h2>"
    for played in comparison.played:
        reasons = "".join(element("li", reason) for reason in played.reasons)
        yield f"{element('h3', played.engine)}\n<ul>{reasons}</ul>"
    for engine, reason in comparison.unsupported.items():
        yield f'<h3>{escape(engine)} <span class="bad">cannot serve this</span></h3>\n{element("p", reason)}'


def _bars(comparison: Comparison) -> list[tuple[str, str, float]]:
    """(engine, dollars a month, length of its bar in per cent)."""
    months = [(p.engine, p.usd_per_month) for p in comparison.played if p.usd_per_month is not None]
    most = max((usd for _, usd in months), default=0.0)
    return [(engine, units.usd(usd), 100 * usd / most) for engine, usd in months] if most else []
