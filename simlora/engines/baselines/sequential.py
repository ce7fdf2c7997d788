"""Iteration-level batching of any adapters, first come first served; its kernels go from adapter to adapter.

The base model computes once for the whole batch, then each adapter adds its part with a pair of small GEMMs for each
projection (the latency model's family `loop`). The request at the head of the queue stops those behind it, whatever it
waits for: max_num_seqs, memory, a slot or the token budget.
"""

from __future__ import annotations

from collections import deque

from simlora.engines.baselines.base import BaselineEngine, BaselineLimits
from simlora.engines.request import Request
from simlora.memory.residents import ResidentSet


class SequentialEngine(BaselineEngine):
    """Mixes adapters in a step."""

    def __init__(self, limits: BaselineLimits, slots: ResidentSet | None) -> None:
        super().__init__(limits, slots)
        self.queue: deque[Request] = deque()

    def enqueue(self, request: Request, now_s: float) -> bool:
        self.queue.append(request)
        if len(self.queue) == 1:
            return self.arrives(request)
        self.arrival_reason = self.blocked
        return False

    def next_request(self) -> Request | None:
        return self.queue[0] if self.queue else None

    def take(self, request: Request) -> None:
        self.queue.popleft()

    def waiting_count(self) -> int:
        return len(self.queue)
