"""LoRAX's adapters: a queue of requests for each, a set of active ones, and the exchange between active and pending.

Source: router/src/queue.rs (a7394ba). An adapter is tracked while it is active or pending; both are FIFO. The base
model is adapter 0, costs nothing, and takes part like any other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf, nextafter
from typing import NamedTuple

from simlora.engines.base import NEVER_S
from simlora.engines.request import Request

BUDGET = 1 << 60
"""The memory budget of active adapters (1.0 in LoRAX) as an integer, so that what goes in and out adds up."""


class AdapterQueue:
    """One adapter and the requests that wait for it."""

    __slots__ = (
        "active", "adapter", "expires_s", "loaded_from", "moves", "rank", "ready", "requests", "tracked", "units",
    )  # fmt: skip

    def __init__(self, adapter: int, rank: int) -> None:
        self.adapter, self.rank = adapter, rank
        self.requests: deque[Request] = deque()
        self.units: int | None = None
        """Its cost in BUDGETs; None until it is downloaded."""
        self.tracked = self.active = False
        self.ready = False
        """On the GPU to stay: loaded, with no offload to come. (LoRAX itself goes on using an adapter that it has taken
        out and in again until the shard gets to the offload.)"""
        self.moves = 0
        """Loads and offloads that the loader has yet to do."""
        self.expires_s = NEVER_S
        """End of its turn, while it is active."""
        self.loaded_from = 0
        """Slowest tier of the loads since a request of it was admitted; 0: none."""


class Exchange(NamedTuple):
    """What an exchange asks of the loader, in this order."""

    offload: list[AdapterQueue]
    load: list[AdapterQueue]


class AdapterQueues:
    """All queues of one replica."""

    def __init__(self, max_active: int, cycle_s: float) -> None:
        self._max_active, self._cycle_s = max_active, cycle_s
        self.known: dict[int, AdapterQueue] = {}
        self.active: dict[int, AdapterQueue] = {}
        """In the order of activation."""
        self.pending: deque[AdapterQueue] = deque()
        self.servable: dict[int, AdapterQueue] = {}
        """Active and ready, with somebody waiting."""
        self.budget = BUDGET
        """What is left of it."""
        self.waiting = 0
        self.servable_waiting = 0
        self._arrived = 0

    def append(self, request: Request) -> tuple[AdapterQueue, bool]:
        """A request waits. Returns its queue, and whether its adapter was never seen before: then it is downloaded."""
        queue = self.known.get(request.adapter)
        new = queue is None
        if queue is None:
            queue = self.known[request.adapter] = AdapterQueue(request.adapter, request.rank)
        if not queue.tracked:
            queue.tracked = True
            self.pending.append(queue)
        request.key = self._arrived
        self._arrived += 1
        queue.requests.append(request)
        self._count(queue, 1)
        return queue, new

    def choose(self, now_s: float) -> AdapterQueue | None:
        """The servable adapter whose head waits longest, among those within their turn if there are any."""
        best, best_rank = None, (True, 0)
        for queue in self.servable.values():
            rank = now_s >= queue.expires_s, int(queue.requests[0].key)
            if best is None or rank < best_rank:
                best, best_rank = queue, rank
        return best

    def pop(self, queue: AdapterQueue) -> Request:
        request = queue.requests.popleft()
        self._count(queue, -1)
        return request

    def clear(self) -> list[Request]:
        """Everybody who waits, in order of arrival; nobody does from now on."""
        requests = [self.pop(queue) for queue in self.known.values() for _ in range(len(queue.requests))]
        return sorted(requests, key=lambda request: request.key)

    def push_front(self, request: Request) -> None:
        """Back to where it was popped from; the last popped first."""
        queue = self.known[request.adapter]
        queue.requests.appendleft(request)
        self._count(queue, 1)

    def set_ready(self, queue: AdapterQueue, ready: bool) -> None:
        self._leave(queue)
        queue.ready = ready
        self._enter(queue)

    def exchange(self, now_s: float, in_use: Callable[[int], bool]) -> Exchange:
        """Active adapters make room for pending ones; in_use: those that running requests keep."""
        if not self.pending:
            return Exchange([], [])
        offload = self._drop_idle(in_use)
        front = next(iter(self.active.values()), None)
        if front is not None and now_s > front.expires_s and not in_use(front.adapter):
            self._deactivate(front)
            self.pending.append(front)
            offload.append(front)
        for queue in offload:
            self.budget += queue.units or 0
        return Exchange(offload, self._activate(now_s))

    def next_change_s(self, now_s: float, in_use: Callable[[int], bool]) -> float:
        """When an exchange or a choice first comes out differently though nobody arrives or leaves."""
        times = [queue.expires_s for queue in self.servable.values() if queue.expires_s > now_s]
        front = next(iter(self.active.values()), None)
        if self.pending and front is not None and front.expires_s >= now_s and not in_use(front.adapter):
            times.append(nextafter(front.expires_s, inf))
        return min(times, default=NEVER_S)

    def _drop_idle(self, in_use: Callable[[int], bool]) -> list[AdapterQueue]:
        """Unused active adapters that nobody waits for, at most as many as are pending, leave altogether."""
        idle: list[AdapterQueue] = []
        for queue in self.active.values():
            if len(idle) == len(self.pending):
                break
            if not queue.requests and not in_use(queue.adapter):
                idle.append(queue)
        for queue in idle:
            self._deactivate(queue)
            queue.tracked = False
        return idle

    def _activate(self, now_s: float) -> list[AdapterQueue]:
        """From the front of pending, until one is not downloaded or does not fit."""
        load: list[AdapterQueue] = []
        while self.pending and len(self.active) < self._max_active:
            queue = self.pending[0]
            if queue.units is None or queue.units > self.budget:
                break
            self.pending.popleft()
            self.budget -= queue.units
            queue.active, queue.expires_s = True, now_s + self._cycle_s
            self.active[queue.adapter] = queue
            self._enter(queue)
            load.append(queue)
        return load

    def _deactivate(self, queue: AdapterQueue) -> None:
        self._leave(queue)
        del self.active[queue.adapter]
        queue.active, queue.ready, queue.expires_s = False, False, NEVER_S

    def _count(self, queue: AdapterQueue, change: int) -> None:
        """`change` more requests wait in the queue."""
        self.waiting += change
        if queue.active and queue.ready:
            self.servable_waiting += change
            if queue.requests:
                self.servable[queue.adapter] = queue
            else:
                del self.servable[queue.adapter]

    def _enter(self, queue: AdapterQueue) -> None:
        if queue.active and queue.ready and queue.requests:
            self.servable[queue.adapter] = queue
            self.servable_waiting += len(queue.requests)

    def _leave(self, queue: AdapterQueue) -> None:
        if self.servable.pop(queue.adapter, None) is not None:
            self.servable_waiting -= len(queue.requests)
