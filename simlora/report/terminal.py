"""What a person reads in a terminal: the summary of a run on one screen, the memory ledger, what a trace holds.

The summary has the answer first, then latency, where time goes, details, tenants and warnings. Returns rich
renderables; the command line prints them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from simlora.memory.ledger import LedgerRow
from simlora.report import facts, units
from simlora.report.facts import Fact, Summary
from simlora.results.shares import CATEGORIES

if TYPE_CHECKING:
    from simlora.workload.traces.describe import LengthSummary, TraceSummary

WIDE = 118
"""Columns from which the lists and tables stand beside each other."""
BAR_CELLS = 24
MAX_SHARES = 6
MAX_REPLICAS = 8

_COLOURS = {
    "queue": "red",
    "route": "magenta",
    "load": "yellow",
    "prefill": "cyan",
    "decode": "green",
    "host": "blue",
    "collective": "bright_black",
}


class SummaryView:
    """The whole report, laid out for the width that it is printed in.

    With the scenario, it also names what the summary does not hold: model, GPU and objectives.
    """

    def __init__(self, summary: Summary, scenario: Any = None) -> None:
        self.summary, self.scenario = summary, scenario

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        summary, width = self.summary, options.max_width
        yield headline(summary, self.scenario)
        yield latency_table(summary)
        yield Text()
        columns = detail_lists(summary)
        per_row = 4 if width >= WIDE else 2
        for begin in range(0, len(columns), per_row):
            yield side_by_side(*columns[begin : begin + per_row])
            yield Text()
        parts = (shares_table(summary), tenants_table(summary))
        if width >= WIDE:
            yield side_by_side(*parts)
        else:
            yield parts[0]
            yield Text()
            yield parts[1]
        if len(summary["replicas"]) > 1:
            yield Text()
            yield replicas_table(summary)
        warnings = warnings_list(summary)
        if warnings is not None:
            yield Text()
            yield warnings


def run_tables(summary: Summary, scenario: Any = None) -> list[RenderableType]:
    """The report of `simlora run`, to be printed in order."""
    return [SummaryView(summary, scenario)]


def headline(summary: Summary, scenario: Any = None) -> RenderableType:
    """What was simulated, whether it is good enough, the figures that matter most, and what takes most time."""
    met, sentence = facts.verdict(summary, scenario)
    style = {True: "bold green", False: "bold red", None: "bold"}[met]
    throughput, output, ttft, cost = (fact.text for fact in facts.key_figures(summary))
    figures = f"{throughput} · {output} · p99 TTFT {ttft} · {cost} per 1M tokens"
    lines = [Text(facts.title(summary, scenario), style="dim"), Text(sentence, style=style), Text(figures)]
    binding = summary["bottleneck"]["binding"]
    if binding is not None:
        share = units.percent(summary["bottleneck"]["shares"][binding])
        lines[-1].append(f" · most time: {CATEGORIES[binding].label} ({share})")
    return Group(*lines, Text())


def latency_table(summary: Summary) -> Table:
    """Distributions in milliseconds."""
    table = _table("ms", *facts.STATISTICS)
    for label, key in facts.latencies():
        table.add_row(label, *(units.ms(summary[key][name]) for name in facts.STATISTICS))
        for tier, block in facts.cold_starts(summary) if key == "ttft_s" else ():
            cells = (units.ms(block[name]) if name in block else "" for name in facts.STATISTICS)
            table.add_row(f"  {tier}", *cells, style="dim")
    return table


def detail_lists(summary: Summary) -> list[Table]:
    """Lists of facts under their headings."""
    return [fact_list(name, rows) for name, rows in facts.details(summary).items()]


def fact_list(name: str, rows: list[Fact]) -> Table:
    """Labels and values under a heading."""
    table = Table.grid(padding=(0, 1))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_row(Text(name, style="bold not dim"), "")
    for fact in rows:
        table.add_row(fact.label, Text(fact.text, style="yellow" if fact.warn else ""))
    return table


def shares_table(summary: Summary) -> Table:
    """Where the requests' time goes, as bars."""
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_row(Text("Where request time goes", style="bold not dim"), "", "")
    every = facts.shares(summary)
    for name, label, share in every[:MAX_SHARES]:
        table.add_row(label, units.percent(share), Text(bar(share), style=_COLOURS[name.split("_")[0]]))
    rest = sum(share for _, _, share in every[MAX_SHARES:])
    if rest:
        table.add_row("other", units.percent(rest), Text(bar(rest), style="bright_black"))
    return table


def bar(share: float, cells: int = BAR_CELLS) -> str:
    """A bar of eighths of a cell, at least one."""
    eighths = max(1, round(share * cells * 8))
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def tenants_table(summary: Summary) -> RenderableType:
    """The tenants served worst, and how evenly all were served."""
    tenants = summary["tenants"]
    table = _table("Worst tenants", "rank", "requests", "in SLO", "p99 TTFT", "slowdown")
    for row in tenants["worst"]:
        name = f"adapter {row['adapter']}" if row["adapter"] else "base model"
        slowdown = units.MISSING if row["slowdown"] is None else f"× {row['slowdown']:.2f}"
        counts = (units.number(row["rank"]), units.number(row["requests"]), units.percent(row["attainment"]))
        table.add_row(name, *counts, units.seconds(row["ttft_p99_s"]), slowdown)
    jain = f"{units.number(tenants['count'])} tenants, Jain index {units.number(tenants['jain_index'])}"
    return Group(table, Text(jain, style="dim"))


def replicas_table(summary: Summary) -> RenderableType:
    """Replicas beside each other; the first MAX_REPLICAS of many."""
    table = _table("Replica", "requests", "running", "waiting", "KV mean", "KV max", "slot hits", "loads", "preempted")
    for row in summary["replicas"][:MAX_REPLICAS]:
        table.add_row(
            str(row["replica"]),
            units.number(row["requests"]),
            units.number(row["running_mean"]),
            units.number(row["waiting_mean"]),
            units.percent(row["kv_usage_mean"]),
            units.percent(row["kv_usage_max"]),
            units.percent(row["gpu_hit_rate"]),
            units.number(row["loads"]),
            units.number(row["preemptions"]),
        )
    hidden = len(summary["replicas"]) - MAX_REPLICAS
    more = [Text(f"and {hidden} more", style="dim")] if hidden > 0 else []
    return Group(table, *more)


def warnings_list(summary: Summary) -> RenderableType | None:
    """What limits how far the numbers can be trusted, extrapolated terms first; None when there is nothing to say."""
    lines: list[Text] = []
    extrapolated = facts.extrapolated(summary)
    if extrapolated:
        terms = ", ".join(f"{fact.label} ({fact.text})" for fact in extrapolated)
        lines.append(Text.assemble(("EXTRAPOLATED ", "bold yellow"), f"outside the measured range: {terms}"))
    censored = facts.censored(summary)
    if censored:
        lines.append(Text.assemble(("censored ", "yellow"), censored))
    lines += [Text.assemble(("note ", "yellow"), note) for note in summary["notes"]]
    return Group(*lines) if lines else None


def side_by_side(*parts: RenderableType) -> Table:
    """Parts in one row."""
    grid = Table.grid(padding=(0, 2))
    for _ in parts:
        grid.add_column()
    grid.add_row(*parts)
    return grid


def _table(first: str, *numbers: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    table.add_column(first, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True, min_width=6)
    return table


def memory_table(rows: Sequence[LedgerRow], binding: str, notes: Sequence[str]) -> RenderableType:
    """One line per entry of one GPU, then what binds, then advice."""
    table = Table(title="memory of one GPU", title_justify="left", box=None, header_style="bold", pad_edge=False)
    table.add_column("")
    table.add_column("GB", justify="right")
    table.add_column("share", justify="right")
    table.add_column("")
    for row in rows:
        style = "red" if row.bytes < 0 else ""
        table.add_row(row.label, f"{row.bytes / 1e9:.2f}", f"{row.share:.1%}", row.note, style=style)
    lines = [Text(f"binds: {binding}", style="bold"), *(Text(f"advice: {note}") for note in notes)]
    return Group(table, *lines)


def trace_table(summary: TraceSummary) -> RenderableType:
    """Two columns: property and value; notes below."""
    table = Table(
        title=f"{summary.source} ({summary.format})", title_justify="left", box=None, show_header=False, pad_edge=False
    )
    table.add_column("", style="bold")
    table.add_column("")
    for label, value in _rows(summary):
        table.add_row(label, value)
    return Group(table, *(Text(f"note: {note}") for note in summary.notes))


def _rows(summary: TraceSummary) -> list[tuple[str, str]]:
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in summary.dropped.items()) or "none"
    rows = [
        ("requests", f"{summary.rows:,}"),
        ("dropped rows", dropped),
        ("span", f"{summary.span_s:,.1f} s"),
        ("rate", _number(summary.request_rate_rps, "{:.3f} req/s")),
        ("inter-arrival cv", _number(summary.interarrival_cv, "{:.2f} (Poisson: 1)")),
        ("distinct stamps", f"{summary.distinct_stamps:,}, tick {summary.tick_s:g} s"),
        ("prompt tokens", _lengths(summary.prompt_tokens)),
        ("output tokens", _lengths(summary.output_tokens)),
    ]
    if summary.max_model_len is not None and summary.over_model_len_fraction is not None:
        rows.append((f"longer than {summary.max_model_len:,}", f"{summary.over_model_len_fraction:.2%} of requests"))
    if summary.adapters is None:
        rows.append(("adapters", "not named in the trace: a seeded rule maps them (workload.trace.adapter_rule)"))
    else:
        rows.append(("adapters", f"{summary.adapters:,}, base share {_number(summary.base_fraction, '{:.1%}')}"))
        top = f"top 1 {_number(summary.top1_fraction, '{:.1%}')}, top 10 {_number(summary.top10_fraction, '{:.1%}')}"
        rows.append(("popularity", top))
        distinct = _number(summary.distinct_adapters_per_batch, "{:.1f} distinct adapters")
        rows.append((f"in a batch of {summary.batch_size}", distinct))
    if summary.prefix_reuse_fraction is not None:
        rows.append(("prefix reuse", f"{summary.prefix_reuse_fraction:.1%} of prompt tokens, at best"))
    return rows


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _lengths(lengths: LengthSummary) -> str:
    quantiles = f"p50 {lengths.p50:,.0f}, p90 {lengths.p90:,.0f}, p99 {lengths.p99:,.0f}, max {lengths.max:,}"
    return f"mean {lengths.mean:,.1f}, {quantiles}"
