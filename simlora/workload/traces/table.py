"""What a trace format says of itself, what its parser returns, and what a user can ask of it. Knows no file format."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from simlora.errors import ConfigError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Rows = npt.NDArray[np.int64]
HashIds = tuple[tuple[int, ...], ...]

Unit = Literal["s", "ms", "us", "ns"]
SECONDS_PER_UNIT: dict[str, float] = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}

PREFIX_BLOCK_TOKENS = 16
"""Granularity of prefix ids where a source states none: vLLM's default block size."""

_EXAMPLE_LINES = 5


@dataclass(frozen=True)
class TraceOptions:
    """How to read a trace. The defaults suit a file that keeps its format's own conventions."""

    format: str = "auto"
    unit: Unit | None = None
    """Unit of numeric time stamps; None = the format's own, checked against a plausible rate."""
    jitter: bool = False
    """Spread stamps over the clock's tick (see trace_time.spread)."""
    failures: Literal["error", "drop"] | None = None
    """Rows without output tokens; None = the format's own habit: dropped where it records failures, else an error."""
    adapter_column: str | None = None
    """Column (or JSON key) that names each request's adapter; None = the format's own, if it has one."""
    sort_window_s: float = 10.0
    """Stamps may go back by this much and are then sorted; more is an error."""
    seed: int = 0
    """For what a trace leaves open: jitter, and arrival times that a benchmark did not record."""


@dataclass(frozen=True)
class Labels:
    """A column of names: names[codes[i]] is row i's; names[0] is "" = not given."""

    codes: Ints
    names: tuple[str, ...]

    def take(self, rows: npt.NDArray[np.intp]) -> Labels:
        """The labels of these rows, in this order; rows: indices."""
        return Labels(self.codes[rows], self.names)


@dataclass(frozen=True)
class Dropped:
    """Rows that were left out, and where the first of them stand."""

    reason: str
    count: int
    lines: tuple[int, ...]

    def __str__(self) -> str:
        more = ", ..." if self.count > len(self.lines) else ""
        where = f" (line {', '.join(map(str, self.lines))}{more})" if self.lines else ""
        return f"{self.count} rows dropped: {self.reason}{where}"


@dataclass(frozen=True)
class TraceTable:
    """One trace, one entry per request, in seconds and tokens."""

    source: str
    """File name for messages."""
    format: str
    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    row: Rows
    """Number of the record in the file, from 0."""
    line_of: Callable[[int], int]
    """Record number -> line of the file, from 1."""
    adapter: Labels | None = None
    """None: the trace names no adapters."""
    group: Labels | None = None
    """Session, tenant or class that a request belongs to."""
    rank: Ints | None = None
    prefix: HashIds | None = None
    """Ids of the prompt's leading blocks, equal where the content up to there is equal."""
    prefix_block_tokens: int = PREFIX_BLOCK_TOKENS
    dropped: tuple[Dropped, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.arrival_s)

    def take(self, rows: npt.NDArray[np.intp]) -> TraceTable:
        """The trace with these of its rows, in this order; rows: indices."""
        return replace(
            self,
            arrival_s=self.arrival_s[rows],
            prompt_tokens=self.prompt_tokens[rows],
            output_tokens=self.output_tokens[rows],
            row=self.row[rows],
            adapter=self.adapter and self.adapter.take(rows),
            group=self.group and self.group.take(rows),
            rank=None if self.rank is None else self.rank[rows],
            prefix=self.prefix and tuple(self.prefix[row] for row in rows.tolist()),
        )

    def drop(self, unwanted: npt.NDArray[np.bool_], reason: str) -> TraceTable:
        """The trace without these rows (unwanted: a mask [num_rows]), which are counted and located under `reason`."""
        count = int(unwanted.sum())
        if not count:
            return self
        first = self.row[unwanted][:_EXAMPLE_LINES]
        dropped = Dropped(reason, count, tuple(self.line_of(int(row)) for row in first))
        return replace(self.take(np.flatnonzero(~unwanted)), dropped=(*self.dropped, dropped))

    def note(self, text: str) -> TraceTable:
        """The trace with one more note."""
        return replace(self, notes=(*self.notes, text))

    def where(self, index: int) -> str:
        """`file:line` of entry `index`, for messages."""
        return f"{self.source}:{self.line_of(int(self.row[index]))}"


def normalised(name: str) -> str:
    """Column names are compared without case, spaces and punctuation: "Request tokens" = "request_tokens"."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def csv_records(text: str, source: str) -> Iterator[tuple[list[str], int]]:
    """(fields, line number) of each record that is not blank.

    Raises:
        ConfigError: a record that is no CSV.
    """
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        for fields in reader:
            if len(fields) > 1 or (fields and fields[0].strip()):
                yield fields, reader.line_num
    except csv.Error as error:
        raise ConfigError(f"{source}:{reader.line_num}", "row", None, f"a well-formed CSV row ({error})") from error


@dataclass(frozen=True)
class TraceHead:
    """The beginning of a file, as formats look at it to tell whether it is theirs."""

    text: str
    source: str

    @cached_property
    def first_line(self) -> str:
        """Without blanks around it; empty for an empty file."""
        return self.text.lstrip().partition("\n")[0].strip()

    @cached_property
    def is_json(self) -> bool:
        """Whether the file begins like a JSON object or list."""
        return self.first_line.startswith(("{", "["))

    @cached_property
    def columns(self) -> frozenset[str]:
        """Normalised names in a CSV header; none for JSON."""
        fields = [] if self.is_json else next((fields for fields, _ in csv_records(self.text, self.source)), [])
        return frozenset(map(normalised, fields))

    @cached_property
    def first_keys(self) -> frozenset[str]:
        """Keys of the JSON object on the first line; none where there is no such object."""
        return _keys(self.first_line) if self.is_json else frozenset()

    @cached_property
    def keys(self) -> frozenset[str]:
        """Keys of the JSON object on the first line or, where that is none, of the one that is the whole file."""
        return self.first_keys or (_keys(self.text) if self.is_json else frozenset())


def _keys(text: str) -> frozenset[str]:
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return frozenset()
    return frozenset(value) if isinstance(value, dict) else frozenset()


@dataclass(frozen=True)
class TraceFormat:
    """A format of traces, described in its own module as FORMAT and registered in scenario/trace_formats.py."""

    name: str
    parse: Callable[[str, str, TraceOptions], TraceTable]
    """(text, source for messages, options) -> trace."""
    detect: Callable[[TraceHead], bool]
    """Whether a file is of this format; asked in the order of registration."""
    keeps_clock: bool = False
    """Stamps count from the start of the run; those of other formats are moved to begin at 0."""
    any_order: bool = False
    """Requests stand as they were offered; a stamp that goes back is no sign of a broken file."""
    fixed_unit: bool = False
    """Stamps can have no other unit."""
    read_folder: Callable[[Path, TraceOptions], TraceTable] | None = None
    """Reads a folder, where the format is one."""
