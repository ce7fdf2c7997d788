"""The small request streams of single measurements, played through the simulator.

As the recorder did: loads, then prefills, one request at a time, on one server that keeps its adapters meanwhile; and
for each decode row a burst of requests. A recorder waits for one request before it sends the next; here they are so
far apart that each finds an idle server.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

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
from simlora.validate.host import on_its_host
from simlora.validate.options import ReplayOptions
from simlora.validate.scenario_of_run import scenario_of_run
from simlora.workload.adapter_table import AdapterTable
from simlora.workload.request_table import RequestTable

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
