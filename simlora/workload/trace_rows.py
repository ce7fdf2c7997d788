"""From checked columns to a TraceTable: the rules that every format shares."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

import numpy as np

from simlora.errors import ConfigError
from simlora.workload.trace import Floats, Labels, TraceOptions, TraceTable
from simlora.workload.trace_columns import CsvTable

FAILED = "failed requests (no output tokens)"


def open_columns(text: str, source: str, options: TraceOptions, as_text: tuple[str, ...] = ()) -> CsvTable:
    """The file's columns; `as_text` and the options' adapter column are kept as text."""
    own = (options.adapter_column,) if options.adapter_column else ()
    return CsvTable(text, source, text_columns=(*as_text, *own))


@dataclass(frozen=True)
class Layout:
    """Where a format keeps what every format has: indices of columns."""

    format: str
    stamp: int
    prompt: int
    output: int
    adapter: int | None = None
    others: tuple[int | None, ...] = ()
    """Further columns that the reader knows."""
    failures: Literal["error", "drop"] = "error"
    """What a row without output tokens is, unless the options say."""


def table(columns: CsvTable, layout: Layout, options: TraceOptions, arrival_s: Floats, **optional: Any) -> TraceTable:
    """Trace of all rows but failed ones; a failed row may also lack prompt tokens. `optional`: more of its fields."""
    adapter = columns.require(options.adapter_column) if options.adapter_column else layout.adapter
    drop = (options.failures or layout.failures) == "drop"
    output_tokens = columns.tokens(layout.output, 0 if drop else 1)
    failed = output_tokens == 0
    prompt_tokens = columns.tokens(layout.prompt, 0 if drop else 1)
    empty = (prompt_tokens == 0) & ~failed
    if empty.any():
        raise columns.error(int(np.argmax(empty)), layout.prompt, "a whole number of tokens of at least 1")
    return TraceTable(
        source=columns.source,
        format=layout.format,
        arrival_s=arrival_s,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        row=np.arange(len(columns), dtype=np.int64),
        line_of=columns.line_of,
        adapter=None if adapter is None else columns.labels(adapter),
        notes=_ignored(columns, {layout.stamp, layout.prompt, layout.output, adapter, *layout.others}),
        **optional,
    ).drop(failed, FAILED)


def _ignored(columns: CsvTable, known: set[int | None]) -> tuple[str, ...]:
    names = [name for index, name in enumerate(columns.header) if index not in known]
    return (f"columns ignored: {', '.join(names)}",) if names else ()


def combined(parts: list[Labels]) -> Labels:
    """One label per row out of several: "ChatGPT / API log"."""

    def pair(left: Labels, right: Labels) -> Labels:
        width = len(right.names)
        keys, codes = np.unique(left.codes.astype(np.int64) * width + right.codes, return_inverse=True)
        names = [f"{left.names[key // width]} / {right.names[key % width]}" for key in keys.tolist()]
        return Labels(codes.astype(np.int32) + 1, ("", *names))

    return reduce(pair, parts)


def check_no_unit(options: TraceOptions, source: str, trace_format: str) -> None:
    """ConfigError where a unit is stated for stamps that have none to choose."""
    if options.unit is not None:
        raise ConfigError(source, "unit", options.unit, f"none: {trace_format} stamps are wall-clock times")
