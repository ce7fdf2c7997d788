"""Punica's adapter buffers: preallocated, filled by copies beside the steps, held by the requests that wait or run.

Source: arXiv:2310.18547, section 5.2: the weights of a request's adapter are copied while the running batch goes on,
and the request joins it when they are there.
"""

from __future__ import annotations

from simlora.engines.base import NEVER_S
from simlora.engines.overlap_loading import OverlapLoading
from simlora.engines.request import Request
from simlora.latency.step import HOST
from simlora.memory.residents import ResidentSet


class PunicaAdapters:
    """Buffers and the copies into them."""

    def __init__(self, buffers: ResidentSet, copies: OverlapLoading | None) -> None:
        """copies: None where loads block the step."""
        self.buffers, self._copies = buffers, copies
        self.in_flight: dict[int, int] = {}
        """Adapter that is being copied -> requests that wait for it."""
        self.evictions = 0
        self.loads_by_rank: dict[int, int] = {}
        self._fresh: set[int] = set()
        """Adapters that no request has run with since they were loaded."""

    @property
    def overlapped(self) -> bool:
        return self._copies is not None

    @property
    def copying(self) -> bool:
        """Bytes go to the GPU beside the steps."""
        return self._copies is not None and self._copies.copying

    @property
    def next_s(self) -> float:
        """When a copy takes its next step."""
        return NEVER_S if self._copies is None else self._copies.due_s

    def hold(self, request: Request, now_s: float) -> bool:
        """Keep a buffer for the request, and begin to fill it; False if none can be had."""
        adapter, buffers = request.adapter, self.buffers
        if not adapter:
            return True
        if adapter not in buffers:
            if not buffers.can_add():
                return False
            self.evictions += buffers.add(adapter, now_s) is not None
            self.loads_by_rank[request.rank] = self.loads_by_rank.get(request.rank, 0) + 1
            self._fresh.add(adapter)
            self._start(request, now_s)
        buffers.use(adapter)
        if adapter in self.in_flight:
            self.in_flight[adapter] += 1
        return True

    def let_go(self, request: Request, now_s: float) -> None:
        """The request does not need its buffer any more."""
        if request.adapter:
            self.buffers.release(request.adapter, now_s)
            if request.adapter in self.in_flight:
                self.in_flight[request.adapter] -= 1

    def ready(self, request: Request) -> bool:
        """The request's adapter is complete."""
        return request.adapter not in self.in_flight

    def first_use(self, request: Request) -> bool:
        """The request starts; True if its adapter was loaded and nobody ran with it since."""
        if request.adapter not in self._fresh:
            return False
        self._fresh.discard(request.adapter)
        return True

    def finish(self, now_s: float) -> None:
        """Copies that are complete by now_s."""
        if self._copies is not None:
            for done, _ in self._copies.advance(now_s):
                del self.in_flight[done.adapter]

    def _start(self, request: Request, now_s: float) -> None:
        if self._copies is not None:
            self.in_flight[request.adapter] = 0
            self._copies.start(request.adapter, request.rank, HOST, now_s)
            self.finish(now_s)
