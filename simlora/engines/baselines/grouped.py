"""One adapter per batch: what a system does that can only run requests of the same model together.

The batch belongs to the adapter of the request that waited longest when the batch before had drained; base requests are
a group of their own. It opens with the waiting requests of its adapter, as many as max_num_seqs and memory take (over
several steps if the token budget is short), and takes more of them while it runs, each as it comes. So that the others
are not passed over for ever, it is closed to newcomers once `switch_after` requests of other adapters wait: then it
drains, and the next batch begins. With switch_after 1 no request is overtaken but by those that the batch opened with.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from simlora.engines.base import SLOTS, TOKENS
from simlora.engines.baselines.base import BaselineEngine, BaselineLimits
from simlora.engines.request import Request
from simlora.latency.step import StepPlan
from simlora.memory.residents import ResidentSet


class GroupedEngine(BaselineEngine):
    """Serves one adapter at a time. Waiting for another one's batch counts as waiting for a slot."""

    def __init__(self, limits: BaselineLimits, slots: ResidentSet | None) -> None:
        super().__init__(limits, slots)
        self.queues: dict[int, deque[Request]] = {}
        """Adapter -> its waiting requests; none is empty."""
        self.waiting = 0
        self.adapter = 0
        """Whose batch it is."""
        self.opening = False
        """The batch has not had all yet that it began with."""
        self._arrivals = 0

    def enqueue(self, request: Request, now_s: float) -> bool:
        self._arrivals += 1
        request.key = self._arrivals
        queue = self.queues.setdefault(request.adapter, deque())
        queue.append(request)
        self.waiting += 1
        if self.running and request.adapter != self.adapter:
            self.arrival_reason = SLOTS
            return False
        if len(queue) == 1:
            return self.arrives(request)
        self.arrival_reason = self.blocked
        return False

    def refuses(self, request: Request) -> bool:
        """The batch is closed to newcomers."""
        others = self.waiting - len(self.queues[request.adapter])
        return bool(self.running) and not self.opening and others >= self.limits.switch_after

    def form_step(self, now_s: float) -> StepPlan | None:
        if self.waiting and not self.running:
            self.adapter = min(self.queues.values(), key=lambda queue: queue[0].key)[0].adapter
            self.opening = True
        plan = super().form_step(now_s)
        if self.adapter not in self.queues or self.blocked != TOKENS:
            self.opening = False
        return plan

    def next_request(self) -> Request | None:
        queue = self.queues.get(self.adapter)
        return queue[0] if queue else None

    def take(self, request: Request) -> None:
        queue = self.queues[request.adapter]
        queue.popleft()
        if not queue:
            del self.queues[request.adapter]
        self.waiting -= 1

    def waiting_count(self) -> int:
        return self.waiting

    def waiting_by_reason(self) -> tuple[int, int, int, int]:
        counts = [0, 0, 0, 0]
        own = len(self.queues.get(self.adapter, ()))
        counts[self.blocked] += own
        counts[SLOTS] += self.waiting - own
        return counts[0], counts[1], counts[2], counts[3]

    def violations(self) -> Iterator[tuple[str, str]]:
        yield from super().violations()
        if any(request.adapter != self.adapter for request in self.running.values()):
            yield "INV-4", f"a batch of adapter {self.adapter} holds requests of others"
        if self.waiting != sum(map(len, self.queues.values())):
            yield "INV-1", "the queues hold another number of requests than are waiting"
