"""Arrival times of requests in seconds from the start of the run.

Renewal processes (Poisson, gamma, deterministic) live here, processes whose rate changes in `rates`. Every function
takes a Generator and a Window and returns non-decreasing times within it. Knows nothing about what a request asks for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_FIRST_DRAW, _LARGEST_DRAW = 1024, 1 << 20


@dataclass(frozen=True)
class Window:
    """Where arrivals stop: before `duration_s`, after `num_requests`, or at whichever comes first if both are given."""

    duration_s: float | None = None
    num_requests: int | None = None

    def __post_init__(self) -> None:
        if self.duration_s is None and self.num_requests is None:
            raise ValueError("a window needs duration_s or num_requests")

    def filled_by(self, last_s: float, count: int) -> bool:
        """Whether times up to `last_s`, `count` of them, reach the end of the window."""
        late = self.duration_s is not None and last_s >= self.duration_s
        return late or (self.num_requests is not None and count >= self.num_requests)

    def cut(self, times_s: Floats) -> Floats:
        """The times of a sorted array that lie within the window."""
        if self.duration_s is not None:
            times_s = times_s[: np.searchsorted(times_s, self.duration_s, side="left")]
        return times_s[: self.num_requests]


def partial_sums(draw: Callable[[int], Floats], window: Window, to_time: Callable[[Floats], Floats]) -> Floats:
    """Cumulative sums of gaps drawn in growing chunks and mapped to time, until the window is full.

    The sum runs sequentially over chunks, so a longer window only appends to a shorter one.
    """
    size, total, count, parts = _FIRST_DRAW, 0.0, 0, []
    while True:
        gaps = draw(size)
        gaps[0] += total
        sums = np.cumsum(gaps)
        times_s = to_time(sums)
        parts.append(times_s)
        total, count = float(sums[-1]), count + size
        if window.filled_by(float(times_s[-1]), count):
            return window.cut(np.concatenate(parts))
        size = min(2 * size, _LARGEST_DRAW)


def poisson(generator: np.random.Generator, rate_rps: float, window: Window) -> Floats:
    """Poisson process: exponential gaps of mean 1 / rate_rps."""
    return partial_sums(generator.standard_exponential, window, lambda sums: sums / rate_rps)


def gamma(generator: np.random.Generator, rate_rps: float, cv: float, window: Window) -> Floats:
    """Renewal process with gamma gaps of mean 1 / rate_rps and coefficient of variation `cv` > 0 (1 = Poisson).

    The first gap is drawn from the residual life of a gap, u * (length-biased gap), u uniform, so that the process is
    stationary and E[arrivals in T] = rate_rps * T exactly. Starting with a whole gap would add (cv^2 - 1) / 2 arrivals
    to any window (Cox, Renewal Theory, 1962).
    """
    shape = cv**-2
    residual = float(generator.random() * generator.gamma(shape + 1.0)) / shape
    first = [residual]

    def draw(size: int) -> Floats:
        gaps = generator.standard_gamma(shape, size) / shape
        if first:
            gaps[0] = first.pop()
        return gaps

    return partial_sums(draw, window, lambda sums: sums / rate_rps)


def deterministic(rate_rps: float, window: Window) -> Floats:
    """One arrival every 1 / rate_rps seconds, the first at 0."""
    count = window.num_requests
    if window.duration_s is not None:
        # One more than fits: rounding of the product must not lose the last arrival, and cut() drops a surplus one.
        within = math.ceil(window.duration_s * rate_rps) + 1
        count = within if count is None else min(count, within)
    assert count is not None
    return window.cut(np.arange(count, dtype=np.float64) / rate_rps)
