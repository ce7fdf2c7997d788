"""The client of the published runs: when it sends what, and how many connections it can hold.

From its script (benchmarks/lora/benchmark_serving_by_time.py of the repository named in agullo_rows.py): each adapter
is a Poisson process of its own that starts after one gap, all draw from one numpy generator of seed 0, nothing is sent
after total_time, and what has not finished by then is cancelled and not counted. Drawing in order of time from the
same generator gives the published counts to 1 % (0.48, 0.94, 1.92, 3.82 requests a second where 0.50, 0.975, 1.90 and
3.775 were asked for). Prompts: ShareGPT, 4 to 1,024 tokens, prompt and output at most 2,048; the data set is not read,
lengths are drawn from distributions of its shape and scaled to the row's means.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from agullo_rows import AgulloRow
from agullo_scrape import Scraper

from simlora.cluster.router import Decision, Hold, Reject, Send
from simlora.engines.view import View
from simlora.engines.vllm.replica import VllmReplica
from simlora.workload.request_table import RequestTable

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]

SEED = 0
MAX_CONNECTIONS = 26_000
"""Local ports of a Linux client (32768 to 60999): a request beyond that fails at once. TTFT of runs that nothing but
the order of arrival delays stops to grow at 24,000 to 26,000 waiting requests."""
SHORTEST, LONGEST_PROMPT, LONGEST = 4, 1024, 2048
PROMPT_SIGMA, OUTPUT_SHAPE = 1.5, 1.2
"""Prompts: lognormal, many of a line and some of a page. Outputs: gamma, nearly exponential."""
MOST_SERVED_RPS = 40.0
"""Once all connections are taken, arrivals beyond this rate (more than any run served) can only fail."""


def requests_of(row: AgulloRow) -> RequestTable:
    """Arrivals, adapters and lengths of a row."""
    rates = [row.rates_rps[index % len(row.rates_rps)] for index in range(row.count)]
    arrival_s, adapter = arrivals(rates, row.total_time_s)
    random = np.random.default_rng(SEED)
    kept = _can_connect(arrival_s, random)
    arrival_s, adapter = arrival_s[kept], adapter[kept]
    prompt, output = lengths(len(arrival_s), row.prompt_tokens, row.output_tokens, random)
    return RequestTable(arrival_s, adapter, prompt, output, None, 512, ())


def arrivals(rates_rps: Sequence[float], total_time_s: float) -> tuple[Floats, Ints]:
    """Times and adapters (1, 2, ...) of all requests, in order of time."""
    random = np.random.RandomState(SEED)
    due = [(random.exponential(1.0 / rate), index) for index, rate in enumerate(rates_rps)]
    heap = [item for item in due if item[0] < total_time_s]
    heapq.heapify(heap)
    times: list[float] = []
    adapters: list[int] = []
    while heap:
        time_s, index = heap[0]
        times.append(time_s)
        adapters.append(index + 1)
        next_s = time_s + random.exponential(1.0 / rates_rps[index])
        if next_s < total_time_s:
            heapq.heapreplace(heap, (next_s, index))
        else:
            heapq.heappop(heap)
    return np.array(times), np.array(adapters, dtype=np.int32)


def _can_connect(arrival_s: Floats, random: np.random.Generator) -> npt.NDArray[np.bool_]:
    """A sample of the arrivals, dense enough that a free connection is taken soon."""
    kept = np.ones(len(arrival_s), dtype=np.bool_)
    if len(arrival_s) <= MAX_CONNECTIONS:
        return kept
    rest_s = arrival_s[-1] - arrival_s[MAX_CONNECTIONS]
    rate = (len(arrival_s) - MAX_CONNECTIONS) / rest_s
    kept[MAX_CONNECTIONS:] = random.random(len(arrival_s) - MAX_CONNECTIONS) < MOST_SERVED_RPS / rate
    return kept


def lengths(count: int, prompt_mean: float, output_mean: float, random: np.random.Generator) -> tuple[Ints, Ints]:
    """Prompt and output lengths of ShareGPT's shape with these means."""
    prompt = np.exp(PROMPT_SIGMA * random.standard_normal(count))
    output = random.gamma(OUTPUT_SHAPE, size=count)
    prompts = _scaled(prompt, prompt_mean, LONGEST_PROMPT)
    return prompts, np.minimum(_scaled(output, output_mean, LONGEST), LONGEST - prompts).astype(np.int32)


def _scaled(shape: Floats, mean: float, longest: int) -> Ints:
    """The draws multiplied so that, rounded and held within the limits, they have the mean."""
    low, high = 0.0, 1e6
    for _ in range(60):
        factor = 0.5 * (low + high)
        values = np.clip(np.rint(shape * factor), SHORTEST, longest)
        low, high = (factor, high) if values.mean() < mean else (low, factor)
    return values.astype(np.int32)


class Client:
    """Sends to one replica as long as the client has a port left, which a request takes until it has finished; what is
    sent while the server answers a scrape gets to the engine afterwards."""

    needs_views = False
    oblivious = False

    def __init__(self, replica: VllmReplica, limit: int = MAX_CONNECTIONS) -> None:
        self.scraper = Scraper(replica)
        self._replica, self._limit = replica, limit
        self._held: set[int] = set()

    def choose(self, request: Any, views: Sequence[View], now_s: float) -> Decision:
        self._replica.advance(now_s)
        if self._replica.outstanding >= self._limit:
            return Reject("no local port is free")
        handled_s = self.scraper.handled_s(now_s)
        if handled_s > now_s and request.index not in self._held:
            self._held.add(request.index)
            return Hold(handled_s)
        self._held.discard(request.index)
        self.scraper.arrived(request.adapter)
        return Send(0)
