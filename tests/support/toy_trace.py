"""A trace format in one file: lines of "seconds;prompt;output;tenant"."""

from __future__ import annotations

import numpy as np

from simlora.workload.traces.columns import labels_of
from simlora.workload.traces.table import TraceFormat, TraceHead, TraceOptions, TraceTable


def parse(text: str, source: str, options: TraceOptions) -> TraceTable:
    rows = [line.split(";") for line in text.splitlines()]
    return TraceTable(
        source=source,
        format="toy",
        arrival_s=np.array([float(row[0]) for row in rows]),
        prompt_tokens=np.array([int(row[1]) for row in rows], dtype=np.int32),
        output_tokens=np.array([int(row[2]) for row in rows], dtype=np.int32),
        row=np.arange(len(rows), dtype=np.int64),
        line_of=lambda row: row + 1,
        adapter=labels_of([row[3] for row in rows]),
    )


def is_toy(head: TraceHead) -> bool:
    return head.first_line.count(";") == 3


FORMAT = TraceFormat("toy", parse, detect=is_toy, keeps_clock=True)
