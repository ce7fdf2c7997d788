"""report.html: one self-contained page with the tables and charts of a run. The same log gives the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING, Any

from simlora.engines.fit import build_ledger, scenario_shortage
from simlora.memory.ledger import binding, ledger_rows
from simlora.report import facts, units
from simlora.report.charts import cdf_chart, timeline_chart
from simlora.report.decision import change_label, recommendation
from simlora.report.facts import Summary
from simlora.report.markup import element, page, row, table
from simlora.results.measured import Measured
from simlora.results.shares import CATEGORIES
from simlora.results.tenants import tenant_rows, worst
from simlora.scenario.root import Scenario
from simlora.sim.log import SimulationLog

if TYPE_CHECKING:
    from simlora.plan.decision import Decision, Outcome

MAX_TENANTS = 20
MAX_REPLICAS = 64

STYLE = """body { max-width: 62rem; }
h3 { font-size: .9rem; margin: 0 0 .4rem; }
.cards, .columns { display: grid; gap: .8rem; grid-template-columns: repeat(auto-fit, minmax(12.5rem, 1fr)); }
.columns { grid-template-columns: repeat(auto-fit, minmax(22rem, 1fr)); }
.card { background: var(--card); border: 1px solid var(--grid); border-radius: 8px; padding: .7rem .9rem; }
.card b { display: block; font-size: 1.35rem; font-weight: 600; }
tr.detail td { color: var(--dim); } tr.detail td:first-child { padding-left: 1.6rem; }
td.refused { color: var(--dim); text-align: left; white-space: normal; }
dl { display: grid; grid-template-columns: auto 1fr; gap: .1rem .8rem; margin: 0; font-size: .9rem; }
dt { color: var(--dim); } dd { margin: 0; text-align: right; font-variant-numeric: tabular-nums; }
.bar { display: flex; height: 1.6rem; border-radius: 5px; overflow: hidden; margin-bottom: .7rem; }
.legend { display: grid; grid-template-columns: repeat(auto-fill, minmax(19rem, 1fr)); gap: .1rem 1.5rem;
  font-size: .9rem; list-style: none; padding: 0; margin: 0; }
.legend li { display: flex; gap: .5rem; align-items: baseline; } .legend span { flex: 1; }
.legend i { width: .75rem; height: .75rem; border-radius: 2px; flex: none; }
.notice { border-left: 3px solid var(--warn); padding: .1rem .9rem; margin: 1rem 0; }
svg { width: 100%; height: auto; display: block; margin-top: 1rem; }
svg text { font-family: inherit; }
footer { margin-top: 2.5rem; font-size: .85rem; }
"""


def render_html(summary: Summary, log: SimulationLog, decision: Decision | None = None) -> str:
    """The page as text; with a decision, what was tried and what is recommended."""
    measured = Measured(log)
    return page(
        str(summary["scenario"]),
        STYLE,
        (
            *_head(summary, log.scenario),
            *_notice(summary),
            *_decision(decision),
            "<h2>Latency (ms)</h2>",
            table(("", *facts.STATISTICS), _latencies(summary)),
            cdf_chart(measured),
            "<h2>Where request time goes</h2>",
            *_shares(summary),
            "<h2>Over time</h2>",
            timeline_chart(measured),
            "<h2>Details</h2>",
            *_details(summary),
            *_memory(log.scenario),
            *_tenants(summary, measured),
            *_replicas(summary),
            _footer(summary),
        ),
    )


def _head(summary: Summary, scenario: Any) -> Iterator[str]:
    met, sentence = facts.verdict(summary, scenario)
    yield element("p", facts.title(summary, scenario), "dim")
    yield element("h1", sentence[:1].upper() + sentence[1:], {True: "good", False: "bad", None: ""}[met])
    yield '<div class="cards">'
    for fact in facts.key_figures(summary):
        yield f'<div class="card">{element("span", fact.label, "dim")}{element("b", fact.text)}</div>'
    yield "</div>"


def _notice(summary: Summary) -> Iterator[str]:
    """What limits how far the numbers can be trusted."""
    extrapolated, censored = facts.extrapolated(summary), facts.censored(summary)
    if not (extrapolated or censored or summary["notes"]):
        return
    yield '<div class="notice">'
    if extrapolated:
        terms = ", ".join(f"{fact.label} ({fact.text})" for fact in extrapolated)
        yield f'<p><strong class="warn">Extrapolated</strong> outside the measured range: {escape(terms)}.</p>'
    if censored:
        yield f'<p><strong class="warn">Censored</strong> {escape(censored)}.</p>'
    yield from (element("p", note) for note in summary["notes"])
    yield "</div>"


def _decision(decision: Decision | None) -> Iterator[str]:
    if decision is None:
        return
    sentence = recommendation(decision)
    yield "<h2>What to change</h2>"
    yield (
        f"<p><strong>{escape(sentence[:1].upper() + sentence[1:])}.</strong> "
        f"Tried on {units.number(decision.sampled_requests)} of the requests:</p>"
    )
    head = ("change", "TTFT mean ms", "TPOT mean ms", "in SLO", "tokens/s out", "KV tokens", "per hour")
    rows = [row(("as it is", *_outcome(decision.baseline)))]
    for candidate in decision.candidates:
        label = change_label(candidate)
        if candidate.outcome is not None:
            rows.append(row((label, *_outcome(candidate.outcome))))
        else:
            refused = f'<td class="refused" colspan="6">impossible: {escape(candidate.refused)}</td>'
            rows.append(f"<tr>{element('td', label)}{refused}</tr>")
    yield table(head, rows)


def _outcome(outcome: Outcome) -> list[str]:
    return [
        units.ms(outcome.ttft_mean_s),
        units.ms(outcome.tpot_mean_s),
        units.percent(outcome.attainment),
        units.number(outcome.throughput_tps),
        units.number(outcome.kv_tokens),
        units.usd(outcome.usd_per_hour),
    ]


def _latencies(summary: Summary) -> Iterator[str]:
    for label, key in facts.latencies():
        yield row((label, *(units.ms(summary[key][name]) for name in facts.STATISTICS)))
        for tier, block in facts.cold_starts(summary) if key == "ttft_s" else ():
            cells = (units.ms(block[name]) if name in block else "" for name in facts.STATISTICS)
            yield row((tier, *cells), "detail")


def _shares(summary: Summary) -> Iterator[str]:
    shares = [(CATEGORIES[name].colour, label, share) for name, label, share in facts.shares(summary)]
    if not shares:
        yield element("p", "No request spent any time.", "dim")
        return
    yield '<div class="bar">'
    for colour, label, share in shares:
        told = f"{label} {units.percent(share)}"
        yield f'<div style="background:{colour};width:{share * 100:.3f}%" title="{escape(told)}"></div>'
    yield '</div>\n<ul class="legend">'
    for colour, label, share in shares:
        yield f'<li><i style="background:{colour}"></i>{element("span", label)}{units.percent(share)}</li>'
    yield "</ul>"
    health = summary["health"]
    thrashing = f"Thrashing means {health['rule']}: {'yes' if health['thrashing'] else 'no'}."
    yield element("p", f"Request-seconds from arrival to last token. {thrashing}", "dim")


def _details(summary: Summary) -> Iterator[str]:
    yield '<div class="columns">'
    for name, rows in facts.details(summary).items():
        listed = (element("dt", fact.label) + element("dd", fact.text, "warn" if fact.warn else "") for fact in rows)
        yield f'<div class="card">{element("h3", name)}<dl>{"".join(listed)}</dl></div>'
    yield "</div>"


def _memory(scenario: Any) -> Iterator[str]:
    """The byte ledger of the scenario's engine, part by part."""
    if not isinstance(scenario, Scenario):
        return
    ledger = build_ledger(scenario)
    parts = ledger_rows(ledger)
    yield "<h2>Memory of one GPU</h2>"
    rows = (row((part.label, f"{part.bytes / 1e9:.2f}", units.percent(part.share), part.note)) for part in parts)
    yield table(("", "GB", "share", ""), rows)
    yield element("p", f"{binding(ledger, scenario_shortage(scenario, ledger))}.", "dim")


def _tenants(summary: Summary, measured: Measured) -> Iterator[str]:
    count, jain = (units.number(summary["tenants"][name]) for name in ("count", "jain_index"))
    ranks = ", ".join(f"{rank}: {units.percent(share)}" for rank, share in summary["ranks"]["share_by_rank"].items())
    yield "<h2>Tenants served worst</h2>"
    told = f"{count} tenants, Jain index {jain} of the share of time in service. Requests by rank: {ranks}."
    yield element("p", told, "dim")
    head = ("tenant", "rank", "requests", "completed", "in SLO", "TTFT p50 ms", "TTFT p99 ms", "TPOT ms", "slowdown")
    yield table(head, (row(_tenant(tenant)) for tenant in worst(tenant_rows(measured), MAX_TENANTS)))


def _tenant(row: dict[str, Any]) -> list[str]:
    return [
        f"adapter {row['adapter']}" if row["adapter"] else "base model",
        units.number(row["rank"]),
        units.number(row["requests"]),
        units.number(row["completed"]),
        units.percent(row["attainment"]),
        units.ms(row["ttft_p50_s"]),
        units.ms(row["ttft_p99_s"]),
        units.ms(row["tpot_mean_s"]),
        units.MISSING if row["slowdown"] is None else f"{row['slowdown']:.2f}",
    ]


def _replicas(summary: Summary) -> Iterator[str]:
    yield "<h2>Replicas</h2>"
    head = ("replica", "requests", "completed", "running", "waiting", "GPU busy", "KV mean", "KV max", "slot hits")
    rows = (row(_replica(replica)) for replica in summary["replicas"][:MAX_REPLICAS])
    yield table((*head, "loads", "preempted"), rows)
    hidden = len(summary["replicas"]) - MAX_REPLICAS
    if hidden > 0:
        yield element("p", f"and {hidden} more", "dim")


def _replica(row: dict[str, Any]) -> list[str]:
    return [
        units.number(row["replica"]),
        units.number(row["requests"]),
        units.number(row["completed"]),
        units.number(row["running_mean"]),
        units.number(row["waiting_mean"]),
        units.percent(row["busy_fraction"]),
        units.percent(row["kv_usage_mean"]),
        units.percent(row["kv_usage_max"]),
        units.percent(row["gpu_hit_rate"]),
        units.number(row["loads"]),
        units.number(row["preemptions"]),
    ]


def _footer(summary: Summary) -> str:
    calibration = summary["calibration"]
    digest = f" · {calibration['sha256'][:12]}" if calibration["sha256"] else ""
    return element(
        "footer",
        f"simlora {summary['simlora_version']} · calibration {calibration['id']}{digest} · TPOT is one value per "
        "request, ITL pools every gap between tokens.",
    )
