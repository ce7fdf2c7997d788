"""Eviction policies: they order the adapters that may leave a tier. Who may leave is the resident set's decision."""

from __future__ import annotations

import math
from collections import OrderedDict
from heapq import heapify, heappop, heappush
from typing import Protocol


class EvictionPolicy(Protocol):
    """Candidates for eviction and their order. Times are simulated seconds and never go back."""

    def record_use(self, adapter: int, now_s: float) -> None:
        """An adapter was used, candidate or not."""

    def insert(self, adapter: int, now_s: float) -> None:
        """The adapter becomes a candidate, most recently used now. It must not be one."""

    def discard(self, adapter: int) -> None:
        """The adapter is no candidate any more; nothing happens if it was none."""

    def victim(self) -> int | None:
        """The next adapter to leave, still a candidate; None if there is none."""

    def __len__(self) -> int: ...


class Lru:
    """The candidate that was used longest ago leaves first. O(1) per call."""

    __slots__ = ("_order",)

    def __init__(self) -> None:
        self._order: OrderedDict[int, None] = OrderedDict()

    def record_use(self, adapter: int, now_s: float) -> None:
        if adapter in self._order:
            self._order.move_to_end(adapter)

    def insert(self, adapter: int, now_s: float) -> None:
        self._order[adapter] = None

    def discard(self, adapter: int) -> None:
        self._order.pop(adapter, None)

    def victim(self) -> int | None:
        return next(iter(self._order), None)

    def __len__(self) -> int:
        return len(self._order)


class WeightedLru:
    """The candidate with the smallest decayed use count leaves first; among equals the one used longest ago.

    A use counts 2 ** -(age / half_life_s). All counts decay alike, so the order of two adapters changes only when one
    of them is used: log2 of the sum of 2 ** (use time / half_life_s) orders them for good. A short half-life approaches
    LRU, a long one counts all uses (LFU). Counts outlive an eviction, so a popular adapter that comes back is popular.
    O(log n) per call, amortised.
    """

    __slots__ = ("_entries", "_half_life_s", "_heap", "_sequence", "_weight")

    def __init__(self, half_life_s: float = 60.0) -> None:
        """Raises ValueError unless half_life_s > 0."""
        if not half_life_s > 0:
            raise ValueError(f"half_life_s must be above 0, not {half_life_s}")
        self._half_life_s = half_life_s
        self._weight: dict[int, float] = {}
        self._entries: dict[int, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, int]] = []
        self._sequence = 0

    def record_use(self, adapter: int, now_s: float) -> None:
        use = now_s / self._half_life_s
        before = self._weight.get(adapter)
        self._weight[adapter] = use if before is None else _log2_sum(before, use)
        if adapter in self._entries:
            self._push(adapter)

    def insert(self, adapter: int, now_s: float) -> None:
        self._weight.setdefault(adapter, now_s / self._half_life_s)
        self._push(adapter)

    def discard(self, adapter: int) -> None:
        self._entries.pop(adapter, None)

    def victim(self) -> int | None:
        while self._heap:
            weight, sequence, adapter = self._heap[0]
            if self._entries.get(adapter) == (weight, sequence):
                return adapter
            heappop(self._heap)  # an older entry of an adapter that was used or left
        return None

    def __len__(self) -> int:
        return len(self._entries)

    def _push(self, adapter: int) -> None:
        self._sequence += 1
        entry = self._weight[adapter], self._sequence
        self._entries[adapter] = entry
        heappush(self._heap, (*entry, adapter))
        if len(self._heap) > 64 + 4 * len(self._entries):
            self._heap = [(*live, adapter) for adapter, live in self._entries.items()]
            heapify(self._heap)


def _log2_sum(a: float, b: float) -> float:
    """log2(2 ** a + 2 ** b) without overflow."""
    low, high = (a, b) if a < b else (b, a)
    return high + math.log2(1.0 + 2.0 ** max(low - high, -1000.0))


def make_policy(name: str) -> EvictionPolicy:
    """The policy of a scenario's engine.eviction: "lru" or "weighted-lru". Raises ValueError for another name."""
    if name == "lru":
        return Lru()
    if name == "weighted-lru":
        return WeightedLru()
    raise ValueError(f"no eviction policy {name!r}")
