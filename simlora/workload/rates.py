"""Poisson processes whose rate changes over time: diurnal, flash crowd, Markov-modulated.

All are exact: points of a unit-rate Poisson process are mapped through the inverse of the cumulative rate
L(t) = integral of rate from 0 to t (Cinlar, Introduction to Stochastic Processes, 1975, chapter 4). No thinning, so
one draw makes one arrival and two runs with the same seed but other rates stay comparable. Rates are per second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from simlora.workload.arrivals import Floats, Window, partial_sums


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
    """Rate base_rps (> 0); from start_s it rises linearly to peak_rps in ramp_s, holds hold_s, falls back in ramp_s."""
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
