"""What a trace holds, as a table."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simlora.workload.describe import LengthSummary, TraceSummary


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
