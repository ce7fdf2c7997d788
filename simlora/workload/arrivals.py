"""Arrival times of requests in seconds from the start of the run.

Every process takes a Generator and a Window and returns non-decreasing times within it: renewal processes (Poisson,
gamma, deterministic), and Poisson processes whose rate changes (diurnal, flash crowd, Markov-modulated). The latter are
exact: points of a unit-rate Poisson process are mapped through the inverse of the cumulative rate
L(t) = integral of rate from 0 to t (Cinlar, Introduction to Stochastic Processes, 1975, chapter 4). No thinning, so
one draw makes one arrival and two runs with the same seed but other rates stay comparable. Rates are per second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simlora.errors import ConfigError
from simlora.scenario.root import Scenario
from simlora.scenario.workload import (
    DeterministicArrivals,
    DiurnalArrivals,
    FlashCrowdArrivals,
    GammaArrivals,
    MmppArrivals,
)
from simlora.workload.rng import rng

Floats = npt.NDArray[np.float64]

_FIRST_DRAW, _LARGEST_DRAW = 1024, 1 << 20


@dataclass(frozen=True)
class Window:
    """Where arrivals stop: before `duration_s`, after `num_requests`, or at whichever comes first if both are given.

    Raises:
        ValueError: neither is given.
    """

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
        """The times that lie within the window, of a non-decreasing array of seconds."""
        if self.duration_s is not None:
            times_s = times_s[: np.searchsorted(times_s, self.duration_s, side="left")]
        return times_s[: self.num_requests]


def partial_sums(draw: Callable[[int], Floats], window: Window, to_time: Callable[[Floats], Floats]) -> Floats:
    """Cumulative sums of gaps drawn in growing chunks and mapped to seconds, until the window is full.

    draw(n) gives n gaps >= 0; to_time is non-decreasing. The sum runs sequentially over chunks, so a longer window only
    appends to a shorter one.
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
    """Seconds of a Poisson process's arrivals: exponential gaps of mean 1 / rate_rps (> 0)."""
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
    """Seconds of arrivals every 1 / rate_rps (> 0) seconds, the first at 0."""
    count = window.num_requests
    if window.duration_s is not None:
        # One more than fits: rounding of the product must not lose the last arrival, and cut() drops a surplus one.
        within = math.ceil(window.duration_s * rate_rps) + 1
        count = within if count is None else min(count, within)
    assert count is not None
    return window.cut(np.arange(count, dtype=np.float64) / rate_rps)


def diurnal(
    generator: np.random.Generator,
    mean_rate_rps: float,
    peak_to_trough: float,
    period_s: float,
    phase_s: float,
    window: Window,
) -> Floats:
    """Rate mean * (1 + a * sin(2 pi (t + phase) / period)), with a such that (1 + a) / (1 - a) = peak_to_trough (>= 1).

    The mean rate holds over whole periods; a window shorter than a period sees the part of the day it covers.
    """
    amplitude = (peak_to_trough - 1.0) / (peak_to_trough + 1.0)
    omega = 2.0 * math.pi / period_s

    def cumulative(t_s: Floats) -> Floats:
        swing = math.cos(omega * phase_s) - np.cos(omega * (t_s + phase_s))
        return mean_rate_rps * (t_s + amplitude / omega * swing)

    # |L(t) / mean - t| <= 2 * amplitude / omega, which brackets the inverse.
    reach_s = 2.0 * amplitude / omega

    def inverse(units: Floats) -> Floats:
        middle_s = units / mean_rate_rps
        return _bisect(cumulative, units, np.maximum(middle_s - reach_s, 0.0), middle_s + reach_s)

    return partial_sums(generator.standard_exponential, window, inverse)


def _bisect(function: Callable[[Floats], Floats], target: Floats, low: Floats, high: Floats) -> Floats:
    """Solve function(x) = target elementwise for a non-decreasing function, to the last bit that matters."""
    for _ in range(60):
        middle = 0.5 * (low + high)
        below = function(middle) < target
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    # The cosine's rounding can break order by one ulp between arrivals that nearly coincide.
    return np.maximum.accumulate(0.5 * (low + high))


def flash_crowd(
    generator: np.random.Generator,
    base_rps: float,
    peak_rps: float,
    start_s: float,
    ramp_s: float,
    hold_s: float,
    window: Window,
) -> Floats:
    """Seconds of arrivals at rate base_rps (> 0); from start_s it rises linearly to peak_rps in ramp_s, holds hold_s,
    falls back in ramp_s."""
    knots_s = np.cumsum([0.0, start_s, ramp_s, hold_s, ramp_s])
    left_rps = np.array([base_rps, base_rps, peak_rps, peak_rps, base_rps])
    right_rps = np.array([base_rps, peak_rps, peak_rps, base_rps])
    width_s = np.diff(knots_s)
    slope = np.append(np.divide(right_rps - left_rps[:-1], width_s, out=np.zeros(4), where=width_s > 0.0), 0.0)
    units_at = np.concatenate([[0.0], np.cumsum(0.5 * (left_rps[:-1] + right_rps) * width_s)])

    def inverse(units: Floats) -> Floats:
        # side="right" steps over pieces of no width, which repeat a knot.
        piece = np.searchsorted(units_at, units, side="right") - 1
        rate, rest = left_rps[piece], units - units_at[piece]
        # Root of rate * x + slope * x^2 / 2 = rest, in the form that has no cancellation and allows slope 0.
        root = np.sqrt(np.maximum(rate**2 + 2.0 * slope[piece] * rest, 0.0))
        times_s: Floats = knots_s[piece] + 2.0 * rest / (rate + root)
        return times_s

    return partial_sums(generator.standard_exponential, window, inverse)


def mmpp(
    generator: np.random.Generator,
    states: np.random.Generator,
    rates_rps: Sequence[float],
    mean_s: Sequence[float],
    window: Window,
) -> Floats:
    """Poisson process whose rate follows states in turn, from the first: exponential stays of mean mean_s[i].

    `states` is a stream of its own: the path of states does not depend on how many arrivals fall into it. At least one
    rate must be above 0. In the long run the rate is mmpp_mean_rate_rps.
    """
    path = _StatePath(states, np.asarray(rates_rps, dtype=np.float64), np.asarray(mean_s, dtype=np.float64))
    return partial_sums(generator.standard_exponential, window, path.inverse)


def mmpp_mean_rate_rps(rates_rps: Sequence[float], mean_s: Sequence[float]) -> float:
    """Long-run rate of mmpp: each state's share of time is in proportion to its mean stay."""
    return float(np.dot(rates_rps, mean_s) / np.sum(mean_s))


class _StatePath:
    """Cumulative rate along one path of states, extended as far as it is asked for."""

    def __init__(self, states: np.random.Generator, rates_rps: Floats, mean_s: Floats) -> None:
        self._states, self._rates, self._mean_s = states, rates_rps, mean_s
        self._starts_s, self._units, self._piece_rates = np.zeros(1), np.zeros(1), np.zeros(0)

    def _extend(self) -> None:
        """Double the path, by whole turns through the states."""
        turns = max(64, len(self._piece_rates) // len(self._rates))
        stays_s = (self._states.standard_exponential((turns, len(self._rates))) * self._mean_s).ravel()
        rates = np.tile(self._rates, turns)
        self._starts_s = np.append(self._starts_s, self._starts_s[-1] + np.cumsum(stays_s))
        self._units = np.append(self._units, self._units[-1] + np.cumsum(stays_s * rates))
        self._piece_rates = np.append(self._piece_rates, rates)

    def inverse(self, units: Floats) -> Floats:
        while self._units[-1] <= units[-1]:
            self._extend()
        # side="right" steps over stays of rate 0, which repeat a value.
        piece = np.searchsorted(self._units, units, side="right") - 1
        return self._starts_s[piece] + (units - self._units[piece]) / self._piece_rates[piece]


def arrival_times(scenario: Scenario) -> Floats:
    """Non-decreasing seconds of the arrivals of the scenario's process, from the stream "arrivals"; at least one.

    Raises:
        ConfigError: none falls into the window.
    """
    workload = scenario.workload
    window = Window(workload.duration_s, workload.num_requests)
    times_s = _process(scenario, window)
    if not len(times_s):
        value = workload.duration_s
        raise ConfigError(scenario.source, "workload.duration_s", value, "long enough for a request to arrive")
    return times_s


def _process(scenario: Scenario, window: Window) -> Floats:
    kind, stream = scenario.workload.arrivals, rng(scenario.seed, "arrivals")
    assert kind is not None, "a scenario without a trace has arrivals"
    if isinstance(kind, DiurnalArrivals):
        return diurnal(stream, kind.mean_rate_rps, kind.peak_to_trough, kind.period_s, kind.phase_s, window)
    if isinstance(kind, FlashCrowdArrivals):
        return flash_crowd(stream, kind.base_rps, kind.peak_rps, kind.start_s, kind.ramp_s, kind.hold_s, window)
    if isinstance(kind, MmppArrivals):
        states = rng(scenario.seed, "arrivals.states")
        rates_rps, mean_s = zip(*((state.rate_rps, state.mean_s) for state in kind.states), strict=True)
        return mmpp(stream, states, rates_rps, mean_s, window)
    if isinstance(kind, GammaArrivals):
        return gamma(stream, kind.rate_rps, kind.cv, window)
    if isinstance(kind, DeterministicArrivals):
        return deterministic(kind.rate_rps, window)
    return poisson(stream, kind.rate_rps, window)
