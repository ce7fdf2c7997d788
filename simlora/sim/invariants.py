"""Invariants that hold at every plan and at the end of every run.

INV-1 conservation: offered = completed + rejected + unfinished. INV-2 the clock never goes back. INV-3 and INV-4,
pools and adapters, are the engine's (Engine.violations). INV-5 causality: arrival <= admitted
<= first token <= last token. INV-8 a completed request got each token once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class InvariantError(AssertionError):
    """An invariant does not hold: a defect of simlora."""


class InvariantChecker:
    """Recounts a replica's state from its requests and compares it with what the engine keeps."""

    def __init__(self) -> None:
        self._last_s: dict[int, float] = {}

    def check(self, replica: Any, now_s: float) -> None:
        """Called after every plan."""
        _hold(now_s >= self._last_s.get(replica.index, 0.0), "INV-2", f"clock went back to {now_s}")
        self._last_s[replica.index] = now_s
        for invariant, message in replica.engine.violations():
            _hold(False, invariant, message)

    def check_end(self, requests: Iterable[Any], drained: bool) -> None:
        """Called once, with every request."""
        for request in requests:
            if request.rejected:
                continue
            if drained:
                _hold(request.last_token_s == request.last_token_s, "INV-1", f"request {request.index} never finished")
            _check_times(request)


def _hold(condition: bool, invariant: str, message: str) -> None:
    if not condition:
        raise InvariantError(f"{invariant}: {message}")


def _check_times(request: Any) -> None:
    times = [request.arrival_s, request.routed_s, request.admitted_s, request.first_token_s, request.last_token_s]
    known = [t for t in times if t == t]
    _hold(known == sorted(known), "INV-5", f"request {request.index}: times out of order {times}")
    if request.last_token_s == request.last_token_s:
        _hold(request.admitted_s == request.admitted_s, "INV-5", f"request {request.index} finished unadmitted")
