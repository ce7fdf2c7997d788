"""Single measurements of a server: steady decode, lone prefills and adapter loads, measured and simulated.

Both sides take the same medians: over the repeats of a prefill without repeat 0, and over the repeats of a load's
phase. The simulated side plays what the recorder sent: loads, then prefills, one request at a time, on one server that
keeps its adapters meanwhile; and for each decode row a burst of requests. A recorder waits for one request before it
sends the next; here they are so far apart that each finds an idle server.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from simlora.engines.inputs import InitialAdapters
from simlora.results.measured import Measured
from simlora.results.token_gaps import boundary_gaps
from simlora.runs.measurements import DecodeRow, LoadRow, PrefillRow
from simlora.runs.recorded import RecordedRun
from simlora.sim.build import build_inputs
from simlora.sim.log import SimulationLog
from simlora.sim.simulate import simulate
from simlora.validate.replay import on_its_host
from simlora.validate.rows import DECODE, LOAD, PREFILL
from simlora.validate.scenario_of_run import ReplayOptions, scenario_of_run
from simlora.workload.adapter_table import AdapterTable
from simlora.workload.request_table import RequestTable


@dataclass(frozen=True)
class Item:
    """What was measured."""

    metric: str
    values: tuple[tuple[str, Any], ...]

    @property
    def key(self) -> dict[str, Any]:
        return dict(self.values)


def measured_medians(recorded: RecordedRun) -> dict[Item, float]:
    """Every single measurement of the run, in the order of its files."""
    decodes = {_decode_item(row): row.itl_p50_s for row in recorded.decodes}
    prefills = _medians(recorded.prefills, [row.ttft_s for row in recorded.prefills], _prefill_item, _after_first)
    loads = _medians(recorded.loads, [row.ttft_s for row in recorded.loads], _load_item)
    return {**decodes, **prefills, **loads}


def simulated_medians(recorded: RecordedRun, options: ReplayOptions, step_scale: float = 1.0) -> dict[Item, float]:
    """The same measurements made on the simulator.

    Raises:
        ConfigError: the server cannot be simulated.
    """
    decodes = {}
    for row in recorded.decodes:
        itl_s = decode_itl_s(recorded, row, options, step_scale)
        if itl_s is not None:
            decodes[_decode_item(row)] = itl_s
    prefills, loads = lone_ttfts_s(recorded, options, step_scale)
    return {
        **decodes,
        **_medians(recorded.prefills, prefills, _prefill_item, _after_first),
        **_medians(recorded.loads, loads, _load_item),
    }


def _medians(
    rows: Iterable[Any],
    values: Iterable[float],
    item: Callable[[Any], Item],
    counts: Callable[[Any], bool] | None = None,
) -> dict[Item, float]:
    groups: dict[Item, list[float]] = {}
    for row, value in zip(rows, values, strict=True):
        if counts is None or counts(row):
            groups.setdefault(item(row), []).append(value)
    return {key: median(group) for key, group in groups.items()}


def _after_first(row: PrefillRow) -> bool:
    """The first repeat may carry a cold load or a compilation."""
    return row.repeat > 0


def _decode_item(row: DecodeRow) -> Item:
    key = (
        ("batch", row.batch),
        ("distinct_adapters", row.distinct_adapters),
        ("rank", row.rank),
        ("prompt_tokens", row.prompt_tokens),
    )
    return Item(DECODE, key)


def _prefill_item(row: PrefillRow) -> Item:
    return Item(PREFILL, (("prompt_tokens", row.prompt_tokens), ("rank", row.rank)))


def _load_item(row: LoadRow) -> Item:
    return Item(LOAD, (("rank", row.rank), ("phase", row.phase)))


APART_S = 3600.0
"""Between lone requests: longer than any of them takes."""

Ints = npt.NDArray[np.int32]
Lone = tuple[int, int, int]
"""Adapter, prompt tokens, output tokens of a request that has the server to itself."""


class _Adapters:
    """Numbers adapters as they are first asked for."""

    def __init__(self) -> None:
        self._ids: dict[Hashable, int] = {}
        self.ranks: list[int] = []

    def number(self, name: Hashable, rank: int) -> int:
        if name not in self._ids:
            self.ranks.append(rank)
            self._ids[name] = len(self.ranks)
        return self._ids[name]


def decode_itl_s(
    recorded: RecordedRun, row: DecodeRow, options: ReplayOptions, step_scale: float = 1.0
) -> float | None:
    """Median gap between two tokens while all requests of the row decode; None if they never all do.

    Their adapters are in slots from the start, as far as there are slots: loading them is not part of the gap.
    """
    index = np.arange(row.batch, dtype=np.int32)
    adapter = 1 + index % row.distinct_adapters if row.distinct_adapters else np.zeros_like(index)
    lengths = np.full_like(index, row.prompt_tokens), np.full_like(index, row.output_tokens)
    table = _table(np.zeros(row.batch), adapter, *lengths)
    ranks = [row.rank] * row.distinct_adapters
    return _steady_gap_s(_simulate(recorded, table, ranks, options, step_scale, resident=True))


def lone_ttfts_s(
    recorded: RecordedRun, options: ReplayOptions, step_scale: float = 1.0
) -> tuple[list[float], list[float]]:
    """(TTFT of every prefill row, TTFT of every load row)."""
    adapters = _Adapters()
    loads = _load_requests(recorded.loads, adapters)
    lone = [*loads, *(_prefill_request(row, adapters) for row in recorded.prefills)]
    if not lone:
        return [], []
    columns = (np.array(column, dtype=np.int32) for column in zip(*lone, strict=True))
    table = _table(np.arange(len(lone), dtype=np.float64) * APART_S, *columns)
    ttft_s = Measured(_simulate(recorded, table, adapters.ranks, options, step_scale)).ttft_s.tolist()
    return ttft_s[len(loads) :], ttft_s[: len(loads)]


def _load_requests(rows: Sequence[LoadRow], adapters: _Adapters) -> list[Lone]:
    """cold and warm: one adapter per repeat, the same ones; hot: the one used last, again and again."""
    lone: list[Lone] = []
    latest: dict[int, int] = {}
    for row in rows:
        repeat = latest.get(row.rank, row.repeat) if row.phase == "hot" else row.repeat
        latest[row.rank] = repeat
        lone.append((adapters.number((row.rank, repeat), row.rank), row.prompt_tokens, row.output_tokens))
    return lone


def _prefill_request(row: PrefillRow, adapters: _Adapters) -> Lone:
    """Every rank has one adapter, which its first repeat may have to load."""
    adapter = adapters.number(("prefill", row.rank), row.rank) if row.rank else 0
    return adapter, row.prompt_tokens, row.output_tokens


def _table(arrival_s: npt.NDArray[np.float64], adapter: Ints, prompt: Ints, output: Ints) -> RequestTable:
    return RequestTable(arrival_s, adapter, prompt, output, None, 1, ())


def _simulate(
    recorded: RecordedRun,
    table: RequestTable,
    ranks: Sequence[int],
    options: ReplayOptions,
    step_scale: float,
    resident: bool = False,
) -> SimulationLog:
    rank = np.array([0, *ranks], dtype=np.int32)
    share = np.bincount(table.adapter, minlength=len(rank)) / len(table)
    adapters = AdapterTable(len(ranks), rank, share)
    scenario = scenario_of_run(recorded, rank[1:], options)
    first = tuple(range(1, min(len(ranks), scenario.engine.max_loras) + 1)) if resident else ()
    inputs = build_inputs(scenario, adapters, table, InitialAdapters(first, first), step_scale)
    return simulate(on_its_host(inputs, recorded.run, step_scale))


def _steady_gap_s(log: SimulationLog) -> float | None:
    """Median of the gaps that begin after every request has its first token and end before any has its last."""
    requests = log.requests
    timeline = Measured(log).timelines[0]
    gaps, offsets = boundary_gaps(timeline)
    if (requests.first_run < 0).any():
        return None
    first = offsets[requests.first_run] + 1
    begin, end = int(first.max()), int((first + requests.output_tokens - 1).min())
    return float(np.median(gaps[begin:end])) if begin < end else None
