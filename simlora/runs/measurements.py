"""The optional tables of a recorded run: the scheduler's log, and single measurements of decode, prefill and loads.

Times are seconds, lengths tokens. The first repeat of a prefill may carry a cold load or a compilation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from simlora.workload.traces.columns import CsvTable
from simlora.workload.traces.text_file import read_text

Floats = npt.NDArray[np.float64]

PHASES = ("cold", "warm", "hot")
DECODE_OUTPUT_TOKENS = 48
"""Length of the requests of a decode row, where decode.csv has no output_tokens column."""
LOAD_PROMPT_TOKENS = 32
"""Length of the prompts of load rows, where load.csv has no prompt_tokens column."""
LOAD_OUTPUT_TOKENS, PREFILL_OUTPUT_TOKENS = 2, 1
"""Length of the answers; TTFT does not depend on it."""


@dataclass(frozen=True)
class DecodeRow:
    """Median inter-token time while `batch` requests over `distinct_adapters` all decode."""

    batch: int
    distinct_adapters: int
    rank: int
    prompt_tokens: int
    itl_p50_s: float
    output_tokens: int = DECODE_OUTPUT_TOKENS


@dataclass(frozen=True)
class PrefillRow:
    """TTFT of one request alone."""

    prompt_tokens: int
    rank: int
    repeat: int
    ttft_s: float
    output_tokens: int = PREFILL_OUTPUT_TOKENS


@dataclass(frozen=True)
class LoadRow:
    """TTFT of one short request alone, by where its adapter was: cold = disk, warm = host memory, hot = a slot."""

    rank: int
    phase: str
    repeat: int
    ttft_s: float
    prompt_tokens: int = LOAD_PROMPT_TOKENS
    output_tokens: int = LOAD_OUTPUT_TOKENS


@dataclass(frozen=True)
class Steps:
    """The scheduler's log, one entry per step or sample. NaN: the column is missing."""

    t_s: Floats
    running: Floats
    waiting: Floats
    kv_usage: Floats
    """0 to 1."""
    preempted: Floats
    """Preemptions since the entry before."""


def open_csv(path: Path) -> CsvTable:
    """A CSV file of a run's folder, named `folder/file` in messages."""
    return CsvTable(read_text(str(path)), f"{path.parent.name}/{path.name}", ("adapter", "phase", "status"))


def read_decodes(table: CsvTable) -> tuple[DecodeRow, ...]:
    batch, prompt = _counts(table, "batch", 1), _counts(table, "prompt_tokens", 1)
    distinct, rank = _counts(table, "distinct_adapters", 0), _counts(table, "rank", 0)
    output = _counts(table, "output_tokens", 2, DECODE_OUTPUT_TOKENS)
    itl = _seconds(table, "itl_p50_s")
    for wrong, column, allowed in (
        (distinct > batch, "distinct_adapters", "at most batch"),
        ((rank > 0) != (distinct > 0), "rank", "above 0 exactly where distinct_adapters is"),
    ):
        if wrong.any():
            raise table.error(int(np.argmax(wrong)), table.require(column), allowed)
    return _rows(DecodeRow, batch, distinct, rank, prompt, itl, output)


def read_prefills(table: CsvTable) -> tuple[PrefillRow, ...]:
    columns = _counts(table, "prompt_tokens", 1), _counts(table, "rank", 0), _counts(table, "repeat", 0)
    return _rows(PrefillRow, *columns, _seconds(table, "ttft_s"))


def read_loads(table: CsvTable) -> tuple[LoadRow, ...]:
    phases = [text.strip() for text in table.strings(table.require("phase"))]
    for index, phase in enumerate(phases):
        if phase not in PHASES:
            raise table.error(index, table.require("phase"), f"one of {', '.join(PHASES)}")
    rank, repeat = _counts(table, "rank", 1), _counts(table, "repeat", 0)
    prompt = _counts(table, "prompt_tokens", 1, LOAD_PROMPT_TOKENS)
    return _rows(LoadRow, rank, phases, repeat, _seconds(table, "ttft_s"), prompt)


def read_steps(table: CsvTable) -> Steps:
    def numbers(name: str) -> Floats:
        column = table.find(name)
        return np.full(len(table), np.nan) if column is None else table.numbers(column)

    preempted = table.find("preempted")
    counts = np.zeros(len(table)) if preempted is None else table.numbers(preempted, blank=0.0)
    return Steps(_seconds(table, "t_s"), numbers("running"), numbers("waiting"), numbers("kv_usage"), counts)


def _rows(row: Callable[..., Any], *columns: Any) -> tuple[Any, ...]:
    plain = (column.tolist() if isinstance(column, np.ndarray) else column for column in columns)
    return tuple(row(*values) for values in zip(*plain, strict=True))


def _counts(table: CsvTable, name: str, minimum: int, default: int | None = None) -> npt.NDArray[np.int32]:
    column = table.find(name) if default is not None else table.require(name)
    if column is None:
        return np.full(len(table), default, dtype=np.int32)
    return table.integers(column, minimum, f"a whole number of at least {minimum}")


def _seconds(table: CsvTable, name: str) -> Floats:
    return table.times(table.require(name))
