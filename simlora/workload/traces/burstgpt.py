"""BurstGPT v1 and v2 (github.com/HPMLL/BurstGPT): seconds from day 0; a failed request has 0 response tokens."""

from __future__ import annotations

from simlora.workload.traces.columns import CsvTable, Layout, combined, open_columns, table
from simlora.workload.traces.table import SECONDS_PER_UNIT, Labels, TraceFormat, TraceOptions, TraceTable

REQUEST, RESPONSE = "Request tokens", "Response tokens"


def parse(text: str, source: str, options: TraceOptions) -> TraceTable:
    """Trace from a file's text. A request's group is its session (v2), else its model and log type (v1)."""
    columns = open_columns(text, source, options, ("Model", "Log Type", "Session ID"))
    stamp, prompt, output = columns.require("Timestamp"), columns.require(REQUEST), columns.require(RESPONSE)
    others = tuple(map(columns.find, ("Model", "Log Type", "Session ID", "Total tokens", "Elapsed time")))
    layout = Layout("burstgpt", stamp, prompt, output, others=others, failures="drop")
    arrival_s = columns.times(stamp) * SECONDS_PER_UNIT[options.unit or "s"]
    return table(columns, layout, options, arrival_s, group=_group(columns))


def _group(columns: CsvTable) -> Labels | None:
    session = columns.find("Session ID")
    if session is not None:
        return columns.labels(session)
    parts = [columns.labels(column) for column in map(columns.find, ("Model", "Log Type")) if column is not None]
    return combined(parts) if parts else None


FORMAT = TraceFormat(
    "burstgpt", parse, detect=lambda head: not head.columns.isdisjoint({"requesttokens", "responsetokens"})
)
