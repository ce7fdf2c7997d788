"""vLLM's two waiting queues as they are: skipped requests, then preempted ones (latest first) and arrivals."""

from __future__ import annotations

from collections import deque

from simlora.engines.request import Request


class NaiveQueue:
    """The slow twin of WaitingQueue."""

    def __init__(self, skipped_first: bool = True) -> None:
        """skipped_first: False for one queue only, to whose front skipped requests go back."""
        self.skipped_first = skipped_first
        self.skipped: deque[Request] = deque()
        self.waiting: deque[Request] = deque()

    def order(self) -> list[int]:
        return [request.index for request in (*self.skipped, *self.waiting)]

    def schedule(self, admit: int, served: set[int] | None) -> list[int]:
        """Admit that many requests; with served, requests of other adapters are skipped. The request after the last
        one admitted stays where it is, as if no memory were left for it."""
        admitted, passed = [], []
        while self.skipped or self.waiting:
            queue = self.skipped or self.waiting
            if served is not None and queue[0].adapter not in served:
                passed.append(queue.popleft())
                continue
            if len(admitted) == admit:
                break
            admitted.append(queue.popleft().index)
        (self.skipped if self.skipped_first else self.waiting).extendleft(reversed(passed))
        return admitted
