"""Reads the folders of recorded runs: run.json, the requests, and the single measurements beside them.

Every problem is a ConfigError with the file, the line and the column. Times are seconds, lengths tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from simlora.errors import ConfigError
from simlora.runs import DECODE, LOAD, PREFILL, REJECTED, REQUESTS, RUN, SERVER, STEPS
from simlora.runs.measurements import (
    DecodeRow,
    LoadRow,
    PrefillRow,
    Steps,
    open_csv,
    read_decodes,
    read_loads,
    read_prefills,
    read_steps,
)
from simlora.runs.run_file import RunFile, read_run_file
from simlora.workload.adapter_table import AdapterTable
from simlora.workload.traces.columns import CsvTable
from simlora.workload.traces.reader import read_trace
from simlora.workload.traces.replay import adapters_from_trace, map_adapters
from simlora.workload.traces.table import PREFIX_BLOCK_TOKENS, HashIds, TraceOptions, TraceTable

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

DEFAULT_RANK, MAX_ADAPTERS = 8, 1_000_000


@dataclass(frozen=True)
class RecordedRequests:
    """The requests to replay, in order of arrival; NaN: not finished when the recording ended, or given up."""

    adapters: AdapterTable
    arrival_s: Floats
    adapter: Ints
    """0 is the base model."""
    prompt_tokens: Ints
    output_tokens: Ints
    ttft_s: Floats
    e2e_s: Floats
    preemptions: float | None
    """Of all requests together; None: not recorded."""
    rejected: int
    """Requests left out because the server refused them."""
    itl_max_s: Floats | None = None
    """Longest gap between two tokens of each request; None: not recorded, as itl_p50_s."""
    itl_p50_s: Floats | None = None
    """Median gap of each request."""
    prefix: HashIds | None = None
    """Which prompts begin alike, as in RequestTable; None: not recorded."""
    prefix_block_tokens: int = PREFIX_BLOCK_TOKENS

    def __len__(self) -> int:
        return len(self.arrival_s)


@dataclass(frozen=True)
class RecordedRun:
    """One folder. What it does not hold is None or empty."""

    folder: Path
    name: str
    run: RunFile
    requests: RecordedRequests | None
    steps: Steps | None
    decodes: tuple[DecodeRow, ...]
    prefills: tuple[PrefillRow, ...]
    loads: tuple[LoadRow, ...]

    @property
    def source(self) -> str:
        """The run.json, for messages."""
        return str(self.folder / RUN)

    @property
    def ranks(self) -> Ints:
        """Of the adapters of its requests, 1, 2, ..."""
        return np.zeros(0, dtype=np.int32) if self.requests is None else self.requests.adapters.rank[1:]

    def longest_tokens(self) -> int:
        """Prompt and output of the longest request of the run, single measurements included."""
        tokens = [row.prompt_tokens + row.output_tokens for row in self.decodes]
        tokens += [row.prompt_tokens + row.output_tokens for row in self.prefills]
        tokens += [row.prompt_tokens + row.output_tokens for row in self.loads]
        if self.requests is not None:
            tokens.append(int((self.requests.prompt_tokens + self.requests.output_tokens).max()))
        return max(tokens)


def read_recorded_run(path: str | Path) -> RecordedRun:
    """The run in a folder.

    Raises:
        ConfigError: anything missing, malformed or inconsistent.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ConfigError("<arguments>", "run", str(path), "the folder of a recorded run")
    run = read_run_file(folder)
    steps = read_steps(open_csv(folder / STEPS)) if (folder / STEPS).exists() else None
    recorded = RecordedRun(
        folder=folder,
        name=run.name or folder.resolve().name,
        run=run,
        requests=_requests(folder, run, steps) if (folder / REQUESTS).exists() else None,
        steps=steps,
        decodes=read_decodes(open_csv(folder / DECODE)) if (folder / DECODE).exists() else (),
        prefills=read_prefills(open_csv(folder / PREFILL)) if (folder / PREFILL).exists() else (),
        loads=read_loads(open_csv(folder / LOAD)) if (folder / LOAD).exists() else (),
    )
    if recorded.requests is None and not (recorded.decodes or recorded.prefills or recorded.loads):
        raise ConfigError(str(folder), REQUESTS, None, f"missing, and no {DECODE}, {PREFILL} or {LOAD} either")
    return recorded


def _requests(folder: Path, run: RunFile, steps: Steps | None) -> RecordedRequests:
    trace = read_trace(folder, TraceOptions(format="simlora-run"))
    table = open_csv(folder / REQUESTS)
    kept = _kept(table)
    # What a real server refused took no part in the run. What a simulated engine gave up after a while had its effect
    # on others, and the replay gives it up again.
    replayed = np.ones_like(kept) if run.server == SERVER else kept
    rejected = int(np.count_nonzero(~replayed))
    ttft_s, e2e_s = _durations(table, "ttft_s"), _durations(table, "e2e_s")
    _check_times(table, run, kept, ttft_s, e2e_s)
    preemptions = _preemptions(table, kept)
    if preemptions is None and steps is not None:
        preemptions = float(steps.preempted.sum())
    in_run = replayed[trace.row]
    if not in_run.any():
        raise ConfigError(table.source, REQUESTS, None, "at least one request that the server took in")
    trace = trace.take(np.flatnonzero(in_run))
    adapters = _adapters(trace, run)
    ids = map_adapters(trace, adapters, "sample", 0)[0] if adapters.count else np.zeros(len(trace), dtype=np.int32)
    return RecordedRequests(
        adapters=adapters,
        arrival_s=trace.arrival_s,
        adapter=ids,
        prompt_tokens=trace.prompt_tokens,
        output_tokens=trace.output_tokens,
        ttft_s=ttft_s[trace.row],
        e2e_s=e2e_s[trace.row],
        preemptions=preemptions,
        rejected=rejected,
        itl_max_s=_gaps(table, "itl_max_s", trace.row),
        itl_p50_s=_gaps(table, "itl_p50_s", trace.row),
        prefix=trace.prefix,
        prefix_block_tokens=trace.prefix_block_tokens,
    )


def _adapters(trace: TraceTable, run: RunFile) -> AdapterTable:
    """The adapters of the requests, and those that run.json lists although no request used them."""
    adapters, residents = adapters_from_trace(trace), run.initial_adapters
    listed = [] if residents is None else [*residents.gpu, *residents.host]
    if adapters.names is not None:
        unused = dict.fromkeys(str(name) for name in listed if str(name) not in adapters.names)
        table = with_others(adapters, len(unused))
        return replace(table, names=(*adapters.names, *unused))
    known = [number for number in listed if isinstance(number, int) and number <= MAX_ADAPTERS]
    if run.adapters is not None and isinstance(run.adapters.get("count"), int):
        known.append(run.adapters["count"])
    return with_others(adapters, max([adapters.count, *known]) - adapters.count)


def with_others(adapters: AdapterTable, others: int) -> AdapterTable:
    """The table with more adapters that no request uses; their rank is the largest there is, and hardly matters."""
    if not others:
        return adapters
    rank = np.full(others, adapters.rank.max() or DEFAULT_RANK, dtype=np.int32)
    return replace(
        adapters,
        count=adapters.count + others,
        rank=np.concatenate([adapters.rank, rank]),
        probability=np.concatenate([adapters.probability, np.zeros(others)]),
        names=adapters.names and (*adapters.names, *(f"other-{index}" for index in range(1, others + 1))),
    )


def _kept(table: CsvTable) -> Bools:
    status = table.find("status")
    if status is None:
        return np.ones(len(table), dtype=np.bool_)
    return np.array([text.strip() != REJECTED for text in table.strings(status)], dtype=np.bool_)


def _durations(table: CsvTable, name: str) -> Floats:
    """Durations of at least 0; NaN for an empty cell."""
    column = table.require(name)
    values = table.numbers(column, "a duration of at least 0, or empty", blank=0.0)
    if (values < 0).any():
        raise table.error(int(np.argmax(values < 0)), column, "a duration of at least 0, or empty")
    empty = values != table.numbers(column, blank=-1.0)
    return np.where(empty, np.nan, values)


def _gaps(table: CsvTable, name: str, rows: npt.NDArray[np.int64]) -> Floats | None:
    return None if table.find(name) is None else _durations(table, name)[rows]


def _check_times(table: CsvTable, run: RunFile, kept: Bools, ttft_s: Floats, e2e_s: Floats) -> None:
    no_first, no_last = np.isnan(ttft_s), np.isnan(e2e_s)
    problems = [
        (no_first & ~no_last, "ttft_s", "given, since the request finished (e2e_s)"),
        (e2e_s < ttft_s, "e2e_s", "at least ttft_s"),
    ]
    if run.cut_s is None:
        allowed = "given: run.json has no cut_s, so every request that was not rejected finished"
        problems.append((no_last & kept, "e2e_s", allowed))
    for wrong, column, allowed in problems:
        if wrong.any():
            raise table.error(int(np.argmax(wrong)), table.require(column), allowed)
    for key, count in (("offered", len(ttft_s)), ("completed", int(np.count_nonzero(~no_last)))):
        stated = getattr(run, key)
        if stated is not None and stated != count:
            raise ConfigError(table.source, key, count, f"{stated} rows, as run.json says ({key})")


def _preemptions(table: CsvTable, kept: Bools) -> float | None:
    column = table.find("preemptions")
    if column is None:
        return None
    return float(table.integers(column, 0, "a number of preemptions", blank=0)[kept].sum())


def run_folders(paths: Sequence[str | Path]) -> list[Path]:
    """Each path that holds a run.json; of other folders, those up to two levels below that do, in order of name.

    Raises:
        ConfigError: no path at all.
    """
    folders: list[Path] = []
    for path in map(Path, paths):
        if (path / RUN).exists() or not path.is_dir():
            folders.append(path)
            continue
        inside = sorted([*path.glob(f"*/{RUN}"), *path.glob(f"*/*/{RUN}")])
        folders += [file.parent for file in inside] or [path]
    if not folders:
        raise ConfigError("<arguments>", "RUN", None, "at least one folder of a recorded run")
    return folders
