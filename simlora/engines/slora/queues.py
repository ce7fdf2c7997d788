"""The waiting queues of S-LoRA: first come, first served, and adapter clustering.

Source: slora/server/router/{req_queue,cluster_req_queue}.py (c1ddf48). A queue is looked at only when the engine may
admit: every scan takes requests until the first that does not fit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from simlora.engines.active_adapters import ActiveAdapters
from simlora.engines.base import NEVER_S
from simlora.engines.request import Request
from simlora.engines.slora.admission import Admission


class Running(NamedTuple):
    """The batch that decodes."""

    adapters: ActiveAdapters
    base_requests: int
    """Requests without an adapter."""

    def requests(self, adapter: int) -> int:
        """Those of one adapter, or (0) of the base model."""
        return self.adapters.requests.get(adapter, 0) if adapter else self.base_requests


class SloraQueue(Protocol):
    """Order of the waiting requests."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]:
        """In the order in which prefetching sees them."""

    def append(self, request: Request, now_s: float) -> bool:
        """A request arrives. False: no scan before the next change of the batch can end otherwise for it."""

    def settle(self) -> None:
        """Take note of what arrived since the last plan."""

    def scan(self, admission: Admission, running: Running, now_s: float) -> list[Request]:
        """Take out those that can join."""

    def heads(self, running: Running) -> list[Request]:
        """After a scan that took nobody: those whom the scans of the coming steps look at first."""

    def steady_steps(self, running: Running) -> int | None:
        """For how many scans, one a decode step, the heads stay the same; None: until the batch changes."""

    def decoded(self, running: Running, steps: int) -> None:
        """Decode steps of the whole batch were planned."""

    def looked(self, scans: int, length: int) -> None:
        """That many more scans of a queue of that length found nothing new."""

    def take_given_up(self) -> list[Request]:
        """Requests aborted by the last scan."""

    @property
    def give_up_s(self) -> float:
        """When the next request has waited too long."""


def window(queue: SloraQueue, most_tokens: int) -> list[Request]:
    """What the next prefill might hold, by prompt tokens alone."""
    tokens, out = 0, []
    for request in queue:
        tokens += request.prefill_tokens
        if tokens > most_tokens:
            break
        out.append(request)
    return out


class PatientQueue:
    """Gives nobody up, and does not count its scans."""

    def looked(self, scans: int, length: int) -> None:
        return

    def take_given_up(self) -> list[Request]:
        return []

    @property
    def give_up_s(self) -> float:
        return NEVER_S


class FcfsQueue(PatientQueue):
    """First come, first served."""

    def __init__(self) -> None:
        self.waiting: deque[Request] = deque()

    def __len__(self) -> int:
        return len(self.waiting)

    def __iter__(self) -> Iterator[Request]:
        return iter(self.waiting)

    def append(self, request: Request, now_s: float) -> bool:
        self.waiting.append(request)
        return len(self.waiting) == 1

    def settle(self) -> None:
        return

    def scan(self, admission: Admission, running: Running, now_s: float) -> list[Request]:
        out = []
        while self.waiting and admission.add(self.waiting[0]):
            out.append(self.waiting.popleft())
        return out

    def heads(self, running: Running) -> list[Request]:
        return [self.waiting[0]]

    def steady_steps(self, running: Running) -> int | None:
        return None

    def decoded(self, running: Running, steps: int) -> None:
        return


class ClusterQueue(FcfsQueue):
    """From batch_num_adapters running adapters on, requests of these adapters come first, then anybody.

    A preference, not a limit. One difference: in the published code a request that did not fit goes on counting in the
    tests of those after it, so that hardly anybody is let in after a refusal.
    """

    def __init__(self, batch_num_adapters: int) -> None:
        super().__init__()
        self._enough = batch_num_adapters

    def append(self, request: Request, now_s: float) -> bool:
        self.waiting.append(request)
        return True

    def scan(self, admission: Admission, running: Running, now_s: float) -> list[Request]:
        if len(running.adapters) < self._enough:
            return super().scan(admission, running, now_s)
        out = []
        for request in self._preferred(running):
            if not admission.add(request):
                break
            out.append(request)
        taken = set(map(id, out))
        self.waiting = deque(request for request in self.waiting if id(request) not in taken)
        return out + super().scan(admission, running, now_s)

    def heads(self, running: Running) -> list[Request]:
        preferred = self._preferred(running) if len(running.adapters) >= self._enough else []
        return [*preferred[:1], self.waiting[0]]

    def _preferred(self, running: Running) -> list[Request]:
        """The base model brings no adapter into the batch."""
        return [request for request in self.waiting if not request.adapter or request.adapter in running.adapters]
