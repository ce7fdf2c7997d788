"""The /metrics scrapes of the published runs, which stop the API server of vLLM 0.8.5 for up to a second.

A process beside the client asks for /metrics 2 s after the last answer. The gauge vllm:lora_requests_info gets a new
time series for every new pair of adapter sets (running, waiting), and none is ever dropped, so that the text grows over
the hour to tens of megabytes. While the server writes it, in the event loop that also takes requests in and hands
tokens out, requests wait and tokens pile up. Afterwards what one request is owed comes as one chunk, unless a step has
more than 128 outputs: then they are handed out slice by slice, in between each step (VLLM_V1_OUTPUT_PROC_CHUNK_SIZE).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from simlora.engines.vllm.replica import VllmReplica

Floats = npt.NDArray[np.float64]

PAUSE_S = 2.0
SERIES_S = 13e-6
BYTE_S = 20e-9
"""Writing and compressing the text, per series and per byte of adapter names; fitted to real_results/qwen*."""
NAME_BYTES = 10
"""An adapter in a label: dummy-NNN and a comma."""
SLICE = 128
TOKEN_S = 1.4e-4
"""The API server's time per token: detokenizing, JSON, one event for the client."""
LARGEST_LOAD = 0.9


@dataclass(frozen=True)
class Stall:
    """The server stands still from begin_s for still_s, and works off what came meanwhile at the rate that its load
    leaves: what comes at begin_s + t, in or out, is handled still_s - (1 - load) * t later."""

    begin_s: float
    still_s: float
    load: float

    @property
    def end_s(self) -> float:
        return self.begin_s + self.still_s / (1.0 - self.load)

    def handled_s(self, time_s: float) -> float:
        return time_s + max(self.still_s - (1.0 - self.load) * (time_s - self.begin_s), 0.0)


class Scraper:
    """Watches one replica; knows when its API server stood still."""

    def __init__(self, replica: VllmReplica) -> None:
        replica.on_boundary = self._boundary
        self._pairs: set[tuple[frozenset[int], frozenset[int]]] = set()
        self._names = 0
        self._arrived: set[int] = set()
        self._running: frozenset[int] = frozenset()
        self._left: frozenset[int] = frozenset()
        self._version = (-1, -1)
        self._tokens = self._counted_tokens = 0
        self._counted_s = 0.0
        self._decodes = (0, 0)
        self._next_s = PAUSE_S
        self.stalls: list[Stall] = []

    def arrived(self, adapter: int) -> None:
        """A request of the adapter is with the engine."""
        self._arrived.add(adapter)

    def handled_s(self, now_s: float) -> float:
        """When the server takes in what comes now."""
        self._scrape(now_s)
        return self.stalls[-1].handled_s(now_s) if self.stalls and now_s < self.stalls[-1].end_s else now_s

    def _scrape(self, now_s: float) -> None:
        while now_s >= self._next_s:
            still_s = len(self._pairs) * SERIES_S + self._names * NAME_BYTES * BYTE_S
            self.stalls.append(Stall(self._next_s, still_s, self._load(now_s)))
            self._next_s += still_s + PAUSE_S

    def _load(self, now_s: float) -> float:
        """Share of its time that the server hands out tokens, since the last scrape."""
        tokens, seconds = self._tokens - self._counted_tokens, now_s - self._counted_s
        self._counted_tokens, self._counted_s = self._tokens, now_s
        return min(tokens * TOKEN_S / seconds, LARGEST_LOAD) if seconds > 0.0 else 0.0

    def _boundary(self, replica: Any, now_s: float) -> None:
        """The step before has ended and was reported with the requests that waited meanwhile."""
        engine = replica.engine
        step, count = self._decodes
        self._tokens += (engine.step - step) * count
        self._decodes = engine.step, engine.decodes.count
        if self._arrived:
            self._add(self._running, self._left | self._arrived)
            self._arrived.clear()
        version = (engine.version, engine.waiting.size)
        if version != self._version:
            self._version = version
            self._running = frozenset(engine.slots.active)
            self._left = frozenset(engine.waiting.adapters())
            self._add(self._running, self._left)
        self._scrape(now_s)

    def _add(self, running: frozenset[int], waiting: frozenset[int]) -> None:
        pair = running, waiting
        if pair not in self._pairs:
            self._pairs.add(pair)
            self._names += len(running) + len(waiting)


def delivered(times_s: Floats, stalls: list[Stall]) -> Floats:
    """When a client has what the engine put out at these times (NaN stays)."""
    if not stalls:
        return times_s
    begin, still, load = np.array([(stall.begin_s, stall.still_s, stall.load) for stall in stalls]).T
    index = np.maximum(np.searchsorted(begin, times_s, side="right") - 1, 0)
    since = times_s - begin[index]
    return times_s + np.where(since >= 0.0, np.maximum(still[index] - (1.0 - load[index]) * since, 0.0), 0.0)


def merged_tokens(runs: dict[str, Floats], stalls: list[Stall]) -> float:
    """Tokens that came in one chunk with the one before."""
    start_s, steps = runs["start_s"], np.cumsum(runs["steps"])
    merged = 0.0
    for stall in stalls:
        begin_s, end_s = stall.begin_s, stall.begin_s + stall.still_s
        first, last = np.interp([begin_s, end_s], start_s, steps)
        run = min(int(np.searchsorted(start_s, end_s)), len(start_s) - 1)
        running = runs["decode_count"][run]
        if running <= SLICE:
            merged += running * max(last - first - 1.0, 0.0)
    return merged
