"""The waiting queue of an SGLang scheduler: first come, first served, walked adapter by adapter.

SGLang walks its whole queue in every iteration and skips what cannot run. Requests are kept per adapter here, so that
adapters that cannot join cost nothing per request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from heapq import heapify, heappop, heapreplace

from simlora.engines.request import Request


class Verdict(Enum):
    """What the walk does with a request."""

    TAKE = 1
    """Show it to the caller, who takes it out or ends the walk."""
    SKIP = 2
    """Look at the next one."""
    SKIP_ADAPTER = 3
    """Look at no other request of its adapter either."""


class AdapterQueue:
    """Waiting requests in order of (re)arrival; adapter 0 is the base model."""

    def __init__(self) -> None:
        self.size = 0
        self._number = 0
        self._queues: dict[int, deque[tuple[int, float, Request]]] = {}

    def push(self, request: Request, now_s: float) -> None:
        """Queue up behind everybody."""
        self._number += 1
        self._queues.setdefault(request.adapter, deque()).append((self._number, now_s, request))
        self.size += 1

    def take(self, request: Request) -> None:
        """Take out a request."""
        queue = self._queues[request.adapter]
        for position, entry in enumerate(queue):
            if entry[2] is request:
                del queue[position]
                break
        self.size -= 1
        if not queue:
            del self._queues[request.adapter]

    def adapters(self) -> Iterable[int]:
        """Adapters that somebody waits for."""
        return self._queues

    def waiting_for(self, adapters: Iterable[int]) -> int:
        """Requests of these adapters."""
        return sum(len(self._queues.get(adapter, ())) for adapter in adapters)

    def oldest_s(self) -> dict[int, float]:
        """Adapter -> when its first request began to wait."""
        return {adapter: queue[0][1] for adapter, queue in self._queues.items()}

    def walk(self, adapters: Iterable[int], judge: Callable[[Request], Verdict]) -> Iterator[Request]:
        """Requests of these adapters in order, as far as `judge`, asked when each is reached, says TAKE."""
        heads = [(self._queues[adapter][0][0], adapter, 0) for adapter in adapters if adapter in self._queues]
        heapify(heads)
        while heads:
            _, adapter, position = heads[0]
            request = self._queues[adapter][position][2]
            verdict = judge(request)
            if verdict is Verdict.TAKE:
                yield request
            elif verdict is Verdict.SKIP:
                position += 1
            queue = self._queues.get(adapter, ())
            if verdict is Verdict.SKIP_ADAPTER or position >= len(queue):
                heappop(heads)
            else:
                heapreplace(heads, (queue[position][0], adapter, position))

    def __iter__(self) -> Iterator[Request]:
        """All of them in order (slow; for checks)."""
        entries = (entry for queue in self._queues.values() for entry in queue)
        return (request for _, _, request in sorted(entries, key=lambda entry: entry[0]))
