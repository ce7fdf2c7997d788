"""Timing: repeated, warmed up, with a cold L2 cache, reported as percentiles.

`graph` replays a captured CUDA graph, as an engine runs decode steps; `eager` launches every kernel from Python; `wall`
waits for the GPU on both sides; `host` is the CPU's time until the call returns. All results are seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch

Run = Callable[[], object]

MOST_REPEATS, FEWEST_REPEATS = 25, 5
WARMUPS = 2


class Stats(NamedTuple):
    """20th, 50th and 80th percentile of n repeats, seconds."""

    p20: float
    p50: float
    p80: float
    n: int


def stats(times: Sequence[float], calls: int = 1) -> Stats:
    """Percentiles of the time of one call, where every entry of `times` covers `calls` of them."""
    if not times:
        raise ValueError("no times")
    p20, p50, p80 = (np.percentile(np.asarray(times, dtype=float), (20, 50, 80)) / calls).tolist()
    return Stats(p20, p50, p80, len(times))


def repeat(once: Callable[[], float], patience_s: float, fewest: int = FEWEST_REPEATS) -> list[float]:
    """Times of up to MOST_REPEATS calls; fewer, but `fewest`, where they would outlast patience_s together."""
    times: list[float] = []
    while len(times) < MOST_REPEATS:
        times.append(once())
        if len(times) >= fewest and sum(times) >= patience_s:
            break
    return times


class Timer(Protocol):
    """How long a call takes. `calls`: how many equal operations `run` holds; results are for one."""

    def graph(self, run: Run, calls: int = 1) -> Stats: ...

    def eager(self, run: Run, calls: int = 1) -> Stats: ...

    def wall(self, run: Run, calls: int = 1) -> Stats: ...

    def host(self, run: Run, calls: int = 1) -> Stats: ...


@dataclass(frozen=True)
class HostTimer:
    """Wall clock of work that runs on the CPU, for dry runs. Every kind of timing is the same."""

    patience_s: float = 0.001

    def wall(self, run: Run, calls: int = 1) -> Stats:
        """Seconds of the call."""
        return stats(repeat(lambda: _elapsed(run), self.patience_s, fewest=1), calls)

    graph = eager = host = wall


class CudaTimer:
    """CUDA events and graphs. Before every repeat a buffer larger than L2 is overwritten, so that L2 is cold."""

    def __init__(self, l2_bytes: int, patience_s: float = 0.2) -> None:
        self.patience_s = patience_s
        self._cold = torch.empty(max(2 * l2_bytes, 2**20), dtype=torch.uint8, device="cuda")

    def graph(self, run: Run, calls: int = 1) -> Stats:
        """GPU seconds of one replay."""
        graph = capture(run)
        for _ in range(WARMUPS):
            graph.replay()
        torch.cuda.synchronize()
        return stats(repeat(lambda: self._events(graph.replay), self.patience_s), calls)

    def eager(self, run: Run, calls: int = 1) -> Stats:
        """GPU seconds from the first launch to the end of the last: the launches' own time where the host is slower."""
        for _ in range(WARMUPS):
            run()
        torch.cuda.synchronize()
        return stats(repeat(lambda: self._events(run, drain=True), self.patience_s), calls)

    def wall(self, run: Run, calls: int = 1) -> Stats:
        """Host seconds with the GPU idle before and after."""

        def once() -> float:
            torch.cuda.synchronize()
            begin = time.perf_counter()
            run()
            torch.cuda.synchronize()
            return time.perf_counter() - begin

        for _ in range(WARMUPS):
            once()
        return stats(repeat(once, self.patience_s), calls)

    def host(self, run: Run, calls: int = 1) -> Stats:
        """Host seconds until the call returns; the GPU may still work."""

        def once() -> float:
            torch.cuda.synchronize()
            return _elapsed(run)

        for _ in range(WARMUPS):
            once()
        times = repeat(once, self.patience_s)
        torch.cuda.synchronize()
        return stats(times, calls)

    def _events(self, run: Run, drain: bool = False) -> float:
        """drain: let the flush end first, so that the host has no head start over the GPU."""
        self._cold.zero_()
        if drain:
            torch.cuda.synchronize()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3


def capture(run: Run) -> torch.cuda.CUDAGraph:
    """`run` as a CUDA graph; it is called twice before, so that compilation and library handles stay out of it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARMUPS):
            run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        run()
    return graph


def _elapsed(run: Run) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin
