"""A waiting queue that can set the requests of some adapters aside until their copies are there."""

from __future__ import annotations

from collections.abc import Collection
from heapq import heappop, nsmallest

from simlora.engines.request import Key, Request
from simlora.engines.vllm.waiting import WaitingQueue


class HeldQueue(WaitingQueue):
    """The requests of a held adapter keep their places in the order, but are never next."""

    __slots__ = ("_held",)

    def __init__(self, skipped_first: bool = True) -> None:
        super().__init__(skipped_first)
        self._held: set[int] = set()

    def is_held(self, adapter: int) -> bool:
        return adapter in self._held

    def hold(self, adapter: int) -> None:
        """Nobody asks for this adapter's requests until `let_go`."""
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
            self._push_head(queue[0])

    def held(self) -> list[int]:
        """Adapters that are held."""
        return sorted(self._held)

    def head(self, active_only: bool) -> Request | None:
        heap = self._active_heads if active_only else self._heads
        while heap:
            key, adapter = heap[0]
            queue = self._queues[adapter]
            current = bool(queue) and queue[0].key == key and adapter not in self._held
            if current and (not active_only or adapter in self._active):
                return queue[0]
            heappop(heap)
        return None

    def first_adapters(self, most: int, but: Collection[int]) -> list[int]:
        """The first `most` distinct adapters in the order of their first requests, base and those of `but` left out."""
        heads: list[tuple[Key, int]] = [
            (queue[0].key, adapter)
            for adapter, queue in self._queues.items()
            if queue and adapter and adapter not in but
        ]
        return [adapter for _, adapter in nsmallest(most, heads)]

    def _count(self, adapter: int, change: int) -> None:
        super()._count(adapter, change)
        if adapter in self._held:
            self.held_count += change

    def _forget(self) -> None:
        heads = [(queue[0].key, adapter) for adapter, queue in self._queues.items() if queue]
        self._heads = sorted(head for head in heads if head[1] not in self._held)
        self._active_heads = [entry for entry in self._heads if entry[1] in self._active]
