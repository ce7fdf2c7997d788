"""Azure LLM inference traces, 2023 and 2024 (github.com/Azure/AzurePublicDataset): wall-clock stamps, token counts.

Stamps carry up to 7 fractional digits and, in newer files, a zone; without one they are taken as they stand.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from simlora.workload.traces.columns import CsvTable, Layout, check_no_unit, open_columns, table
from simlora.workload.traces.table import Floats, TraceFormat, TraceOptions, TraceTable

TIMESTAMP = ("TIMESTAMP",)
PROMPT = ("ContextTokens", "context_tokens", "PromptTokens")
OUTPUT = ("GeneratedTokens", "generated_tokens", "OutputTokens")

# Years that nanoseconds since 1970 can hold.
_STAMP = r"(19|20)\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)?"
_ALLOWED = "a time stamp like 2023-11-16 18:17:03.9799600, with or without a zone"


def parse(text: str, source: str, options: TraceOptions) -> TraceTable:
    """Trace from a file's text; arrivals in seconds from the earliest."""
    check_no_unit(options, source, "azure")
    columns = open_columns(text, source, options, TIMESTAMP)
    stamp, prompt, output = columns.require(*TIMESTAMP), columns.require(*PROMPT), columns.require(*OUTPUT)
    layout = Layout("azure", stamp, prompt, output)
    return table(columns, layout, options, _seconds(columns, stamp))


def _seconds(columns: CsvTable, column: int) -> Floats:
    import pandas as pd

    cells = columns.strings(column).str.strip()
    well_formed = cells.str.fullmatch(_STAMP).to_numpy(dtype=bool)
    if not well_formed.all():
        raise columns.error(int(np.argmin(well_formed)), column, _ALLOWED)
    stamps = pd.to_datetime(cells, format="ISO8601", utc=True, errors="coerce")
    valid = stamps.notna().to_numpy(dtype=bool)
    if not valid.all():
        raise columns.error(int(np.argmin(valid)), column, _ALLOWED)
    # Differences are taken in whole nanoseconds: as a float, seconds since 1970 are good to 0.2 us only.
    nanoseconds: npt.NDArray[np.int64] = np.asarray(stamps.astype("datetime64[ns, UTC]").astype("int64"), np.int64)
    seconds: Floats = (nanoseconds - nanoseconds.min()) / 1e9
    return seconds


FORMAT = TraceFormat(
    "azure",
    parse,
    detect=lambda head: not head.columns.isdisjoint({"contexttokens", "generatedtokens"}),
    fixed_unit=True,
)
