"""A CSV file as checked columns, and from those to a TraceTable: the rules that every format shares.

Fast where all is well; the exact line and text are looked up only for an error.
"""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from simlora.errors import ConfigError
from simlora.scenario.base import brief
from simlora.workload.request_table import MAX_TOKENS
from simlora.workload.traces.table import Floats, Ints, Labels, TraceOptions, TraceTable, csv_records, normalised

if TYPE_CHECKING:
    import pandas as pd

Mask = npt.NDArray[np.bool_]


class CsvTable:
    """Columns by name; every check that fails raises ConfigError with `file:line`, the column and the text found."""

    def __init__(self, text: str, source: str, text_columns: tuple[str, ...] = ()) -> None:
        """Parse `text`, whose first record is a header. `text_columns` (any spelling) are kept as they are."""
        self.source = source
        self._text = text
        header, self._header_line = next(csv_records(text, source), ([], 0))
        self.header = [name.strip() for name in header]
        self._names = [normalised(name) for name in self.header]
        wanted = {normalised(name) for name in text_columns}
        as_text = {index: str for index, name in enumerate(self._names) if name in wanted}
        self._frame = self._parse(as_text)

    def _parse(self, as_text: dict[int, type[str]]) -> pd.DataFrame:
        import pandas as pd  # slow to import, and not needed for JSON

        # A stamp must come back as it was written; from pandas 3.1 on that is the default and the option deprecated.
        older = tuple(int(part) for part in pd.__version__.split(".")[:2]) < (3, 1)
        exact_floats: dict[str, Any] = {"float_precision": "round_trip"} if older else {}
        # One column more than the header has: it catches rows that are too long by one, pandas those by more.
        width = len(self.header)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", pd.errors.ParserWarning)
                frame: pd.DataFrame = pd.read_csv(
                    io.StringIO(self._text, newline=""),
                    header=None,
                    skiprows=self._header_line,
                    names=list(range(width + 1)),
                    index_col=False,
                    dtype=as_text,
                    keep_default_na=False,
                    na_values=[""],
                    low_memory=False,
                    **exact_floats,
                )
        except pd.errors.EmptyDataError as error:
            raise ConfigError(self.source, "trace", ",".join(self.header), "no rows below the header") from error
        except (pd.errors.ParserError, pd.errors.ParserWarning, ValueError, OverflowError) as error:
            raise self._malformed(str(error)) from error
        if not len(frame):
            raise ConfigError(self.source, "trace", ",".join(self.header), "no rows below the header")
        if frame[width].notna().any():
            raise self._malformed("a row is longer than the header")
        return frame

    def _malformed(self, reason: str) -> ConfigError:
        """Locate the first record with more fields than the header, or the one whose quote stays open."""
        width, begin, previous_end = len(self.header), 1, 0
        for fields, line in csv_records(self._text, self.source):
            if len(fields) > width + 1 or any(fields[width:]):
                row = ",".join(fields)
                return ConfigError(f"{self.source}:{line}", "row", brief(row), f"{width} fields, as the header has")
            begin = previous_end + 1
            previous_end = line
        if "EOF inside string" in reason:
            raise ConfigError(f"{self.source}:{begin}", "row", '"', "a closing quote")
        return ConfigError(self.source, "trace", reason, "a well-formed CSV file")

    def __len__(self) -> int:
        return len(self._frame)

    def _record(self, row: int) -> tuple[list[str], int]:
        for index, record in enumerate(csv_records(self._text, self.source)):
            if index == row + 1:
                return record
        return [], 0

    def line_of(self, row: int) -> int:
        """Line of the file that holds record `row`."""
        return self._header_line + 1 + row if self._one_line_each() else self._record(row)[1]

    def _one_line_each(self) -> bool:
        """Whether there are no blank lines and no line breaks within cells."""
        lines = self._text.count("\n") + (not self._text.endswith("\n"))
        no_cr_alone = self._text.count("\r") == self._text.count("\r\n")
        return '"' not in self._text and no_cr_alone and lines == self._header_line + len(self)

    def error(self, row: int, column: int, allowed: str) -> ConfigError:
        """The error for one cell."""
        fields, line = self._record(row)
        value = fields[column] if column < len(fields) else ""
        return ConfigError(f"{self.source}:{line}", self.header[column], brief(value), allowed)

    def find(self, *names: str) -> int | None:
        """Index of the column that bears one of these names, None if there is none.

        Raises:
            ConfigError: several columns do.
        """
        wanted = [normalised(name) for name in names]
        found = [index for index, name in enumerate(self._names) if name in wanted]
        if len(found) > 1:
            both = ", ".join(self.header[index] for index in found)
            raise ConfigError(f"{self.source}:1", names[0], both, "one such column")
        return found[0] if found else None

    def require(self, *names: str) -> int:
        """As find, but a missing column is an error (ConfigError); the first name is the one to ask for."""
        index = self.find(*names)
        if index is None:
            raise ConfigError(f"{self.source}:1", names[0], ",".join(self.header), "missing from the header")
        return index

    def numbers(self, column: int, allowed: str = "a number", blank: float | None = None) -> Floats:
        """[num_rows], finite numbers; an empty cell is `blank`, or an error (ConfigError, as for what is no number)."""
        values = self._numeric(column)
        if blank is not None:
            values = np.where(self._frame[column].isna(), blank, values)
        self._check(np.isfinite(values), column, allowed)
        return values

    def times(self, column: int) -> Floats:
        """[num_rows], finite numbers >= 0; anything else is a ConfigError."""
        values = self.numbers(column, "a time of at least 0")
        self._check(values >= 0.0, column, "a time of at least 0")
        return values

    def tokens(self, column: int, minimum: int) -> Ints:
        """[num_rows], token counts from minimum to the largest int32; anything else is a ConfigError."""
        return self.integers(column, minimum, f"a whole number of tokens of at least {minimum}")

    def integers(self, column: int, minimum: int, allowed: str, blank: int | None = None) -> Ints:
        """[num_rows], whole numbers from minimum to the largest int32; an empty cell is `blank`, or an error
        (ConfigError)."""
        values = self.numbers(column, allowed, blank)
        good = (values == np.floor(values)) & (values >= minimum) & (values <= MAX_TOKENS)
        self._check(good, column, allowed)
        return values.astype(np.int32)

    def labels(self, column: int) -> Labels:
        """Names, stripped; an empty cell is ""."""
        return labels_of(self.strings(column).str.strip().tolist())

    def strings(self, column: int) -> pd.Series:
        """Text as it stands; an empty cell is ""."""
        return self._frame[column].fillna("").astype(str)

    def _numeric(self, column: int) -> Floats:
        cells = self._frame[column]
        if cells.dtype.kind not in "iuf":
            import pandas as pd

            cells = pd.to_numeric(cells.astype(str), errors="coerce")
        values: Floats = cells.to_numpy(dtype=np.float64)
        return values

    def _check(self, good: Mask, column: int, allowed: str) -> None:
        if not good.all():
            raise self.error(int(np.argmin(good)), column, allowed)


def labels_of(cells: list[str]) -> Labels:
    """Labels of a column, names in order of first appearance after "", which is always names[0]."""
    position: dict[str, int] = {"": 0}
    codes = [position.setdefault(cell, len(position)) for cell in cells]
    return Labels(np.array(codes, dtype=np.int32), tuple(position))


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
