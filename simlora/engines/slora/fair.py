"""S-LoRA's fair queue (virtual token counter): whoever was served least comes next; each adapter is a user.

Source: slora/server/router/vtc_req_queue.py (c1ddf48) with its prices and equal weights. A prompt token counts 1 when
the request is admitted, an output token 2 with each decode step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from simlora.engines.request import Request
from simlora.engines.slora.admission import Admission
from simlora.engines.slora.queues import PatientQueue, Running

INPUT_PRICE, OUTPUT_PRICE = 1, 2


class FairQueue(PatientQueue):
    """A queue per adapter. Equal counters: the adapter that was seen first."""

    def __init__(self) -> None:
        self._queues: dict[int, deque[Request]] = {}
        self._served: dict[int, int] = {}
        """In the order in which adapters were first seen."""
        self._place: dict[int, int] = {}
        self._arrived: list[Request] = []
        """Not yet in their queues: counters of the step in progress are not up to date."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Request]:
        """In the order in which they would be served if nothing else counted."""
        heap = [(self._served[user], self._place[user], 0, user) for user, queue in self._queues.items() if queue]
        heapify(heap)
        while heap:
            served, place, number, user = heappop(heap)
            queue = self._queues[user]
            yield queue[number]
            if number + 1 < len(queue):
                cost = INPUT_PRICE * queue[number].prefill_tokens
                heappush(heap, (served + cost, place, number + 1, user))

    def append(self, request: Request, now_s: float) -> bool:
        self._arrived.append(request)
        self._size += 1
        return True

    def settle(self) -> None:
        for request in self._arrived:
            self._enter(request)
        self._arrived = []

    def _enter(self, request: Request) -> None:
        """A user who comes back starts at the level of those who wait, not below."""
        user = request.adapter
        if user not in self._queues:
            self._queues[user], self._served[user], self._place[user] = deque(), 0, len(self._place)
        if not self._queues[user]:
            waiting = [self._served[other] for other, queue in self._queues.items() if queue]
            if waiting:
                self._served[user] = max(self._served[user], min(waiting))
        self._queues[user].append(request)

    def scan(self, admission: Admission, running: Running, now_s: float) -> list[Request]:
        out: list[Request] = []
        while (user := self._next_user()) is not None and admission.add(self._queues[user][0]):
            request = self._queues[user].popleft()
            self._served[user] += INPUT_PRICE * request.prefill_tokens
            out.append(request)
        self._size -= len(out)
        return out

    def heads(self, running: Running) -> list[Request]:
        user = self._next_user()
        assert user is not None, "nobody waits"
        return [self._queues[user][0]]

    def steady_steps(self, running: Running) -> int | None:
        """Until another user's counter is lower: both grow by the requests that they have in the batch."""
        user = self._next_user()
        if user is None:
            return None
        steps: list[int] = []
        for other, queue in self._queues.items():
            gain = OUTPUT_PRICE * (running.requests(user) - running.requests(other))
            if not queue or other == user or gain <= 0:
                continue
            ahead = self._served[other] - self._served[user]
            steps.append(-(-ahead // gain) if self._place[other] < self._place[user] else ahead // gain + 1)
        return min(steps, default=None)

    def decoded(self, running: Running, steps: int) -> None:
        for user, requests in running.adapters.requests.items():
            self._served[user] += OUTPUT_PRICE * steps * requests
        if running.base_requests:
            self._served[0] += OUTPUT_PRICE * steps * running.base_requests

    def _next_user(self) -> int | None:
        waiting = (user for user, queue in self._queues.items() if queue)
        return min(waiting, key=lambda user: (self._served[user], self._place[user]), default=None)
