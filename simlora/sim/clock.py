"""SimPy environment with events at absolute times and fixed tie order.

SimPy's timeouts are relative: now + (t - now) need not equal t, and two modes that must agree exactly would drift apart
by rounding. `at` puts an event at exactly t.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappush
from typing import Any

import simpy

STEP_END, ARRIVAL, ROUTER_TICK, SAMPLE = range(4)
"""Order in which events at the same instant are handled (SimPy priorities)."""


class _At(simpy.Event):
    def __init__(self, env: simpy.Environment, callback: Callable[[Any], None], value: Any) -> None:
        self.env = env
        self.callbacks = [callback]
        self._ok = True
        self._value = value


class Clock(simpy.Environment):
    """A SimPy environment whose time is the simulated time in seconds."""

    def at(self, time_s: float, priority: int, callback: Callable[[Any], None], value: Any = None) -> None:
        """Call callback(event) at time_s; event.value is `value`. It cannot be cancelled: carry a generation number."""
        entry: Any = (time_s, priority, next(self._eid), _At(self, callback, value))
        heappush(self._queue, entry)
