"""S-LoRA's early abort: requests that would miss their first-token objective are given up, and when more arrive than
are served, the newest come first.

Source: slora/server/router/abort_req_queue.py (c1ddf48); the objective there is 6 s, with half a second of margin.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from simlora.engines.base import NEVER_S
from simlora.engines.request import Request
from simlora.engines.slora.admission import Admission
from simlora.engines.slora.queues import FcfsQueue, Running

MARGIN_S = 0.5
"""A request is given up that much before its objective."""
NEW, OLD = 0.7, 0.3
"""Weights of the last value and of the estimate so far."""


class AbortQueue(FcfsQueue):
    """Newest first in the list. Arrivals per scan and requests per prefill are estimated; each scan updates them."""

    def __init__(self, abort_after_s: float) -> None:
        super().__init__()
        self._patience_s = abort_after_s - MARGIN_S
        self._deadlines: dict[int, float] = {}
        self._given_up: list[Request] = []
        self._arrivals = 1
        """Estimate of the growth of the queue."""
        self._served = 1
        """Estimate of the requests that a scan takes."""
        self._left = 0
        """Requests that the last successful scan left."""

    def append(self, request: Request, now_s: float) -> bool:
        self.waiting.appendleft(request)
        self._deadlines[request.index] = now_s + self._patience_s
        return True

    def scan(self, admission: Admission, running: Running, now_s: float) -> list[Request]:
        self._arrivals = self._next_arrivals(len(self.waiting))
        self._give_up(now_s)
        out = []
        for request in self._order(self._arrivals):
            if not admission.add(request):
                break
            out.append(request)
        if out:
            self._remove(out)
            self._left = len(self.waiting)
            self._served = max(int(NEW * len(out) + OLD * self._served), 1)
        return out

    def heads(self, running: Running) -> list[Request]:
        return [next(self._order(self._arrivals))]

    def steady_steps(self, running: Running) -> int | None:
        return None if self._next_arrivals(len(self.waiting)) == self._arrivals else 1

    def looked(self, scans: int, length: int) -> None:
        """The estimate approaches its limit monotonically, in a few scans."""
        for _ in range(scans):
            following = self._next_arrivals(length)
            if following == self._arrivals:
                return
            self._arrivals = following

    def take_given_up(self) -> list[Request]:
        out, self._given_up = self._given_up, []
        return out

    @property
    def give_up_s(self) -> float:
        return next(iter(self._deadlines.values()), NEVER_S)

    def _next_arrivals(self, length: int) -> int:
        return int(NEW * (length - self._left) + OLD * self._arrivals)

    def _order(self, arrivals: int) -> Iterator[Request]:
        return iter(self.waiting) if arrivals >= self._served else reversed(self.waiting)

    def _give_up(self, now_s: float) -> None:
        self._given_up = [request for request in self.waiting if self._deadlines[request.index] <= now_s]
        if self._given_up:
            self._remove(self._given_up)

    def _remove(self, requests: list[Request]) -> None:
        gone = {request.index for request in requests}
        for index in gone:
            del self._deadlines[index]
        self.waiting = deque(request for request in self.waiting if request.index not in gone)
