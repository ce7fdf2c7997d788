"""The waiting queue of a vLLM scheduler, indexed by adapter.

vLLM walks its queue in order and skips requests whose adapter finds no slot. Walking thousands of skipped requests in
every step would dominate a simulation, so requests are kept per adapter, and two heaps of heads answer "who is next"
among all adapters and among the adapters that are active. The order is the engine's: skipped requests first, in their
own order, then preempted ones (latest first), then arrivals.

Every request has a key, and the order is that of the keys. Arrivals are numbered. A preempted request gets a key
between the last skipped one (the frontier) and the first that was not: a fraction, halfway.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterator
from fractions import Fraction
from heapq import heappop, heappush
from math import ceil, floor

from simlora.engines.request import Key, Request

_SLACK = 256
"""Outdated heap entries that are kept before the heaps are cleaned."""


class WaitingQueue:
    """FCFS order over per-adapter queues. Adapter 0 (base) is always active."""

    __slots__ = (
        "_active", "_active_heads", "_arrivals", "_frontier", "_heads", "_preempted", "_queues", "_skipped_first",
        "active_count", "held_count", "size",
    )  # fmt: skip

    def __init__(self, skipped_first: bool = True) -> None:
        """skipped_first: False for engines with one queue, where a preempted request goes to the very front."""
        self._skipped_first = skipped_first
        self._queues: dict[int, deque[Request]] = {}
        self._heads: list[tuple[Key, int]] = []
        self._active_heads: list[tuple[Key, int]] = []
        self._active: set[int] = {0}
        self._arrivals = 0
        self._frontier: Key = 0
        """Key of the last request that was passed over; nothing before it is new to the scheduler."""
        self._preempted: list[Key] = []
        """Keys of the preempted requests that wait, sorted."""
        self.size = 0
        self.active_count = 0
        """Waiting requests whose adapter is active."""
        self.held_count = 0
        """Waiting requests that are held back for their adapter's copy; see held_queue.py."""

    def push(self, request: Request) -> None:
        """Append an arrival."""
        self._arrivals += 1
        request.key = self._arrivals
        queue = self._queues.get(request.adapter)
        if queue is None:
            queue = self._queues[request.adapter] = deque()
        queue.append(request)
        self._count(request.adapter, 1)
        if len(queue) == 1:
            self._push_head(request)

    def push_preempted(self, request: Request) -> None:
        """Put a preempted request in front of everything that has not been skipped yet."""
        after = bisect_right(self._preempted, self._frontier)
        upper: Key = floor(self._frontier) + 1
        if after < len(self._preempted):
            upper = min(upper, self._preempted[after])
        request.key = Fraction(self._frontier + upper) / 2
        insort(self._preempted, request.key)
        queue = self._queues.setdefault(request.adapter, deque())
        position = 0
        while position < len(queue) and queue[position].key < request.key:
            position += 1
        queue.insert(position, request)
        self._count(request.adapter, 1)
        if position == 0:
            self._push_head(request)

    def head(self, active_only: bool) -> Request | None:
        """The next request in order; with active_only, the next one whose adapter is active."""
        heap = self._active_heads if active_only else self._heads
        while heap:
            key, adapter = heap[0]
            queue = self._queues[adapter]
            if queue and queue[0].key == key and (not active_only or adapter in self._active):
                return queue[0]
            heappop(heap)
        return None

    def pop(self, request: Request) -> None:
        """Take a request that `head` returned."""
        queue = self._queues[request.adapter]
        queue.popleft()
        self._count(request.adapter, -1)
        if self._preempted:
            position = bisect_left(self._preempted, request.key)
            if position < len(self._preempted) and self._preempted[position] == request.key:
                del self._preempted[position]
        if queue:
            self._push_head(queue[0])

    def activate(self, adapter: int) -> None:
        """The adapter has requests in the step from now on."""
        self._active.add(adapter)
        queue = self._queues.get(adapter)
        if queue:
            self.active_count += len(queue)
            heappush(self._active_heads, (queue[0].key, adapter))

    def deactivate(self, adapter: int) -> None:
        self._active.discard(adapter)
        queue = self._queues.get(adapter)
        if queue:
            self.active_count -= len(queue)

    def mark_skipped_before(self, request: Request | None) -> None:
        """Every request before this one (None: all) was passed over; later preemptions queue up behind them."""
        key: Key = self._arrivals + 1 if request is None else request.key
        before = bisect_left(self._preempted, key)
        last: Key = ceil(key) - 1  # the last arrival before it
        if before:
            last = max(last, self._preempted[before - 1])
        if self._skipped_first:
            self._frontier = max(self._frontier, last)

    def mark_skipped_through(self, request: Request) -> None:
        """This arrival and everything before it was passed over."""
        if self._skipped_first:
            self._frontier = max(self._frontier, request.key)

    def __iter__(self) -> Iterator[Request]:
        """All waiting requests in order (slow; for checks and the end of a run)."""
        return iter(sorted((r for queue in self._queues.values() for r in queue), key=lambda r: r.key))

    def _count(self, adapter: int, change: int) -> None:
        self.size += change
        if adapter in self._active:
            self.active_count += change

    def _push_head(self, request: Request) -> None:
        heappush(self._heads, (request.key, request.adapter))
        if request.adapter in self._active:
            heappush(self._active_heads, (request.key, request.adapter))
        if len(self._heads) + len(self._active_heads) > 4 * len(self._queues) + _SLACK:
            self._forget()

    def _forget(self) -> None:
        """Drop entries that are no heads any more: a heap that nobody asks is never cleaned otherwise."""
        heads = [(queue[0].key, adapter) for adapter, queue in self._queues.items() if queue]
        self._heads = sorted(heads)
        self._active_heads = [entry for entry in self._heads if entry[1] in self._active]
