"""The waiting queue of a vLLM scheduler, indexed by adapter where that is needed.

vLLM walks its queue in order and skips requests whose adapter finds no slot. Walking thousands of skipped requests in
every step would dominate a simulation. As long as nobody is skipped or preempted, the queue is a line. Then requests
are kept per adapter, and two heaps of heads answer "who is next" among all adapters and among the adapters that are
active, until the queue is empty. The order is the engine's: skipped requests first, in their own order, then preempted
ones (latest first), then arrivals.

Every request has a key, and the order is that of the keys. Arrivals are numbered. A preempted request gets a key
between the last skipped one (the frontier) and the first that was not: a fraction, halfway.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Collection, Iterator
from fractions import Fraction
from heapq import heappop, heappush, nsmallest
from math import ceil, floor

Key = int | Fraction
_SLACK = 256
"""Outdated heap entries that are kept before the heaps are cleaned."""


class WaitingQueue:
    """FCFS order over per-adapter queues. Adapter 0 (base) is always active. Requests are known by their numbers."""

    __slots__ = (
        "_active", "_active_count", "_active_heads", "_adapter", "_arrivals", "_frontier", "_heads", "_indexed",
        "_keys", "_most_heads", "_popped", "_preempted", "_queues", "_skipped_first", "held_count", "line", "size",
    )  # fmt: skip

    def __init__(self, adapter: list[int], skipped_first: bool = True) -> None:
        """adapter: of each request. skipped_first: False for engines with one queue, where a preempted request goes to
        the very front."""
        self._adapter, self._skipped_first = adapter, skipped_first
        self.line: deque[int] = deque()
        """All that wait, in order, while the queue is not indexed."""
        self._indexed = False
        self._queues: dict[int, deque[int]] = {}
        self._keys: dict[int, Key] = {}
        self._popped: Key = 0
        """Key of the last request taken."""
        self._heads: list[tuple[Key, int]] = []
        self._active_heads: list[tuple[Key, int]] = []
        self._most_heads = _SLACK
        """With more heads than that, outdated ones are dropped."""
        self._active: set[int] = {0}
        self._active_count = 0
        self._arrivals = 0
        self._frontier: Key = 0
        """Key of the last request that was passed over; nothing before it is new to the scheduler."""
        self._preempted: list[Key] = []
        """Keys of the preempted requests that wait, sorted."""
        self.size = 0
        self.held_count = 0
        """Waiting requests that are held back for their adapter's copy (HeldQueue)."""

    @property
    def active_count(self) -> int:
        """Waiting requests whose adapter is active."""
        if not self._indexed:
            self._index()
        return self._active_count

    def push(self, request: int) -> None:
        """Append an arrival."""
        self._arrivals += 1
        self.size += 1
        if not self._indexed:
            self.line.append(request)
            return
        self._append(request, self._arrivals)
        if self._adapter[request] in self._active:
            self._active_count += 1

    def _append(self, request: int, key: int) -> None:
        self._keys[request] = key
        adapter = self._adapter[request]
        queue = self._queues.get(adapter)
        if queue:
            queue.append(request)
            return
        if queue is None:
            queue = self._queues[adapter] = deque()
        queue.append(request)
        self._push_head(key, adapter)

    def push_preempted(self, request: int) -> None:
        """Put a preempted request in front of everything that has not been skipped yet."""
        self._index()
        after = bisect_right(self._preempted, self._frontier)
        upper: Key = floor(self._frontier) + 1
        if after < len(self._preempted):
            upper = min(upper, self._preempted[after])
        key: Key = Fraction(self._frontier + upper) / 2
        insort(self._preempted, key)
        adapter, keys = self._adapter[request], self._keys
        queue = self._queues.setdefault(adapter, deque())
        position = 0
        while position < len(queue) and keys[queue[position]] < key:
            position += 1
        queue.insert(position, request)
        keys[request] = key
        self._count(adapter, 1)
        if position == 0:
            self._push_head(key, adapter)

    def head(self, active_only: bool) -> int:
        """The next request in order; with active_only, the next one whose adapter is active. -1: there is none."""
        if not self._indexed:
            if not active_only:
                return self.line[0] if self.line else -1
            self._index()
        heap = self._active_heads if active_only else self._heads
        while heap:
            key, adapter = heap[0]
            queue = self._queues[adapter]
            if queue and self._keys[queue[0]] == key and self._may_be_next(adapter, active_only):
                return queue[0]
            heappop(heap)
        return -1

    def _may_be_next(self, adapter: int, active_only: bool) -> bool:
        return not active_only or adapter in self._active

    def pop(self, request: int) -> None:
        """Take a request that `head` returned."""
        if not self._indexed:
            self.line.popleft()
            self.size -= 1
            return
        adapter, keys = self._adapter[request], self._keys
        queue = self._queues[adapter]
        queue.popleft()
        key = self._popped = keys.pop(request)
        self.size -= 1
        active = adapter in self._active
        if active:
            self._active_count -= 1
        if self._preempted:
            position = bisect_left(self._preempted, key)
            if position < len(self._preempted) and self._preempted[position] == key:
                del self._preempted[position]
        if queue:
            entry = keys[queue[0]], adapter
            heappush(self._heads, entry)
            if active:
                heappush(self._active_heads, entry)
            if len(self._heads) + len(self._active_heads) > self._most_heads:
                self._forget()
        elif not self.size:
            self._indexed = False
            self._queues.clear()
            self._heads, self._active_heads = [], []

    def activate(self, adapter: int) -> None:
        """The adapter has requests in the step from now on."""
        self._active.add(adapter)
        if self._indexed:
            queue = self._queues.get(adapter)
            if queue:
                self._active_count += len(queue)
                heappush(self._active_heads, (self._keys[queue[0]], adapter))

    def deactivate(self, adapter: int) -> None:
        self._active.discard(adapter)
        if self._indexed:
            queue = self._queues.get(adapter)
            if queue:
                self._active_count -= len(queue)

    def mark_skipped_before(self, request: int) -> None:
        """Every request before this one (-1: all) was passed over; later preemptions queue up behind them. The request
        is one that `head` returned since the queue was pushed to last."""
        if not self._skipped_first or not self._indexed:
            return  # in a line, nobody stands before the head
        if request < 0:
            key: Key = self._arrivals + 1
        else:
            key = self._keys.get(request, self._popped)
        before = bisect_left(self._preempted, key)
        last: Key = ceil(key) - 1  # the last arrival before it
        if before:
            last = max(last, self._preempted[before - 1])
        self._frontier = max(self._frontier, last)

    def mark_skipped_through(self, request: int) -> None:
        """This arrival and everything before it was passed over."""
        if self._skipped_first:
            self._index()
            self._frontier = max(self._frontier, self._keys[request])

    def adapters(self) -> set[int]:
        """Adapters that somebody waits for, base included."""
        if self._indexed:
            return {adapter for adapter, queue in self._queues.items() if queue}
        return {self._adapter[request] for request in self.line}

    def __iter__(self) -> Iterator[int]:
        """All waiting requests in order (slow; for checks and the end of a run)."""
        if not self._indexed:
            return iter(self.line)
        return iter(sorted((r for queue in self._queues.values() for r in queue), key=self._keys.__getitem__))

    def _index(self) -> None:
        """Leave the line."""
        if self._indexed:
            return
        self._indexed = True
        self._active_count = 0
        key = self._arrivals - len(self.line)
        for request in self.line:
            key += 1
            self._append(request, key)
            self._active_count += self._adapter[request] in self._active
        self.line.clear()

    def _count(self, adapter: int, change: int) -> None:
        self.size += change
        if adapter in self._active:
            self._active_count += change

    def _push_head(self, key: Key, adapter: int) -> None:
        heappush(self._heads, (key, adapter))
        if adapter in self._active:
            heappush(self._active_heads, (key, adapter))
        if len(self._heads) + len(self._active_heads) > self._most_heads:
            self._forget()

    def _forget(self) -> None:
        """Drop entries that are no heads any more: a heap that nobody asks is never cleaned otherwise."""
        self._heads = sorted((self._keys[queue[0]], adapter) for adapter, queue in self._queues.items() if queue)
        self._active_heads = [entry for entry in self._heads if entry[1] in self._active]
        self._most_heads = 4 * len(self._queues) + _SLACK


class HeldQueue(WaitingQueue):
    """Sets the requests of some adapters aside until their copies are there: they keep their places in the order, but
    are never next."""

    __slots__ = ("_held",)

    def __init__(self, adapter: list[int], skipped_first: bool = True) -> None:
        super().__init__(adapter, skipped_first)
        self._held: set[int] = set()

    def push(self, request: int) -> None:
        if self._adapter[request] in self._held:
            self._index()
            self.held_count += 1
        super().push(request)

    def is_held(self, adapter: int) -> bool:
        return adapter in self._held

    def hold(self, adapter: int) -> None:
        """Nobody asks for this adapter's requests until `let_go`."""
        self._index()
        self._held.add(adapter)
        self.held_count += len(self._queues.get(adapter, ()))

    def let_go(self, adapter: int) -> None:
        """The adapter's requests can be next again; nothing happens if it was not held."""
        if adapter not in self._held:
            return
        self._held.discard(adapter)
        queue = self._queues.get(adapter)
        if queue:
            self.held_count -= len(queue)
            self._push_head(self._keys[queue[0]], adapter)

    def first_adapters(self, most: int, but: Collection[int]) -> list[int]:
        """The first `most` distinct adapters in the order of their first requests, base and those of `but` left out."""
        self._index()
        heads: list[tuple[Key, int]] = [
            (self._keys[queue[0]], adapter)
            for adapter, queue in self._queues.items()
            if queue and adapter and adapter not in but
        ]
        return [adapter for _, adapter in nsmallest(most, heads)]

    def _may_be_next(self, adapter: int, active_only: bool) -> bool:
        return adapter not in self._held and super()._may_be_next(adapter, active_only)

    def _count(self, adapter: int, change: int) -> None:
        super()._count(adapter, change)
        if adapter in self._held:
            self.held_count += change

    def _forget(self) -> None:
        super()._forget()
        self._heads = [entry for entry in self._heads if entry[1] not in self._held]
