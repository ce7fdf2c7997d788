"""Arrival processes against their theory: rates, dispersion and distributions within confidence intervals.

All bounds are four standard errors, or p-values above 1e-4, at fixed seeds: a test that fails points at the process.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from simlora.workload import adapter_table, arrivals
from simlora.workload.arrivals import Window
from simlora.workload.rng import rng

Floats = npt.NDArray[np.float64]
ERRORS = 4.0
RATE_RPS = 5.0


def assert_mean(samples: Floats, expected: float) -> None:
    error = samples.std(ddof=1) / np.sqrt(len(samples))
    assert abs(samples.mean() - expected) < ERRORS * error, (samples.mean(), expected, error)


def window_counts(times_s: Floats, width_s: float, windows: int) -> Floats:
    counts = np.bincount((times_s / width_s).astype(int), minlength=windows)[:windows]
    return counts.astype(np.float64)


def runs(process: Callable[[int], Floats], count: int) -> Floats:
    """Arrivals of each of `count` runs."""
    return np.array([len(process(seed)) for seed in range(count)], dtype=np.float64)


def test_poisson_counts_and_gaps() -> None:
    times_s = arrivals.poisson(rng(1, "t"), RATE_RPS, Window(duration_s=20_000.0))
    counts = window_counts(times_s, 1.0, 20_000)
    assert_mean(counts, RATE_RPS)
    # Variance of the sample variance of a Poisson count: about (2 m^2 + m) / n.
    assert abs(counts.var() - RATE_RPS) < ERRORS * np.sqrt((2 * RATE_RPS**2 + RATE_RPS) / len(counts))
    assert stats.kstest(np.diff(times_s), "expon", args=(0.0, 1.0 / RATE_RPS)).pvalue > 1e-4
    assert abs(np.corrcoef(counts[:-1], counts[1:])[0, 1]) < ERRORS / np.sqrt(len(counts))


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.0, 4.0, 8.0])
def test_gamma_has_the_stated_rate_in_every_window_and_the_stated_cv(cv: float) -> None:
    counts = runs(lambda seed: arrivals.gamma(rng(seed, "t"), RATE_RPS, cv, Window(duration_s=10.0)), 4000)
    assert_mean(counts, RATE_RPS * 10.0)
    gaps_s = np.diff(arrivals.gamma(rng(1, "t"), RATE_RPS, cv, Window(num_requests=200_001)))
    assert_mean(gaps_s, 1.0 / RATE_RPS)
    # Gaps below a nanosecond, frequent at a high cv, are lost in the rounding of the times: one bin for all of them.
    theory = stats.gamma(cv**-2, scale=cv**2 / RATE_RPS)
    edges_s = np.unique(np.maximum(theory.ppf(np.linspace(0.0, 1.0, 51)[:-1]), 1e-9))
    bin_of = np.searchsorted(edges_s, gaps_s, side="right")
    expected = np.diff(np.concatenate([[0.0], theory.cdf(edges_s), [1.0]])) * len(gaps_s)
    observed = np.bincount(bin_of, minlength=len(expected))
    assert stats.chisquare(observed[expected > 0], expected[expected > 0]).pvalue > 1e-4
    batches = gaps_s.reshape(200, 1000)
    assert_mean(((batches * RATE_RPS - 1.0) ** 2).mean(axis=1), cv**2)


def test_deterministic_is_exact() -> None:
    times_s = arrivals.deterministic(RATE_RPS, Window(duration_s=1000.0))
    assert len(times_s) == 5000
    np.testing.assert_allclose(np.diff(times_s), 1.0 / RATE_RPS)


@pytest.mark.parametrize(("ratio", "phase_s"), [(1.0, 0.0), (4.0, 0.0), (4.0, 25.0), (1e6, 70.0)])
def test_diurnal_mean_and_shape(ratio: float, phase_s: float) -> None:
    period_s, periods, bins = 100.0, 200, 20
    window = Window(duration_s=period_s * periods)
    times_s = arrivals.diurnal(rng(1, "t"), RATE_RPS, ratio, period_s, phase_s, window)
    total = RATE_RPS * period_s * periods
    assert abs(len(times_s) - total) < ERRORS * np.sqrt(total)
    amplitude = (ratio - 1) / (ratio + 1)
    edges = 2 * np.pi * (np.arange(bins + 1) / bins + phase_s / period_s)
    expected = total * (1.0 / bins - amplitude * np.diff(np.cos(edges)) / (2 * np.pi))
    observed = np.bincount((times_s % period_s / period_s * bins).astype(int), minlength=bins)
    assert stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-4


def test_flash_crowd_rates() -> None:
    base, peak, start_s, ramp_s, hold_s, end_s = 2.0, 20.0, 30.0, 20.0, 40.0, 150.0
    edges_s = [0.0, start_s, start_s + ramp_s / 2, start_s + ramp_s, start_s + ramp_s + hold_s, 100.0, 110.0, end_s]
    middle = (base + peak) / 2
    expected_rps = [
        base,
        (base + middle) / 2,
        (middle + peak) / 2,
        peak,
        (peak + middle) / 2,
        (middle + base) / 2,
        base,
    ]
    window = Window(duration_s=end_s)
    times_s = np.concatenate(
        [arrivals.flash_crowd(rng(seed, "t"), base, peak, start_s, ramp_s, hold_s, window) for seed in range(200)]
    )
    observed = np.histogram(times_s, edges_s)[0]
    expected = 200 * np.array(expected_rps) * np.diff(edges_s)
    assert (np.abs(observed - expected) < ERRORS * np.sqrt(expected)).all()


MMPP_RATES, MMPP_MEAN_S = (1.0, 12.0), (8.0, 4.0)


def mmpp_dispersion(width_s: float) -> float:
    """Variance over mean of the counts of a stationary two-state MMPP in windows of width_s.

    The rate has the autocovariance p (1 - p) (r1 - r2)^2 exp(-q t), with p the share of the first state and q the sum
    of both leaving arrivals. Var N(w) = E N(w) + 2 * integral over 0 < s < t < w of it.
    """
    (fast, slow), (first_s, second_s) = MMPP_RATES, MMPP_MEAN_S
    leave = 1 / first_s + 1 / second_s
    share = first_s / (first_s + second_s)
    mean_rps = arrivals.mmpp_mean_rate_rps(MMPP_RATES, MMPP_MEAN_S)
    excess = 2 * share * (1 - share) * (fast - slow) ** 2 / (leave * mean_rps)
    return 1 + excess * (1 - (1 - np.exp(-leave * width_s)) / (leave * width_s))


@pytest.mark.parametrize("width_s", [1.0, 10.0, 100.0])
def test_mmpp_rate_and_index_of_dispersion(width_s: float) -> None:
    windows = int(400_000 / width_s)
    window = Window(duration_s=width_s * windows)
    times_s = arrivals.mmpp(rng(1, "t"), rng(1, "s"), MMPP_RATES, MMPP_MEAN_S, window)
    counts = window_counts(times_s, width_s, windows)
    mean_rps = arrivals.mmpp_mean_rate_rps(MMPP_RATES, MMPP_MEAN_S)
    total = mean_rps * width_s * windows
    assert abs(len(times_s) - total) < ERRORS * np.sqrt(mmpp_dispersion(1e9) * total)
    dispersion = np.array([part.var() / part.mean() for part in np.array_split(counts, 40)])
    assert dispersion.min() > 1.0
    assert_mean(dispersion, mmpp_dispersion(width_s))


def test_mmpp_starts_in_its_first_state() -> None:
    window = Window(duration_s=0.5)
    counts = runs(lambda seed: arrivals.mmpp(rng(seed, "t"), rng(seed, "s"), (0.0, 100.0), (5.0, 5.0), window), 3000)
    # The first state ends at s, exponential of rate a = 1 / 5, and traffic of rate b = 100 comes until 0.5 s.
    a, b, end_s = 1 / 5, 100.0, 0.5
    silent = np.exp(-a * end_s) + a * (np.exp(-a * end_s) - np.exp(-b * end_s)) / (b - a)
    assert_mean((counts > 0).astype(np.float64), 1 - silent)


def test_each_adapter_sees_its_own_poisson_stream() -> None:
    """Thinning a Poisson process by independent choices gives independent Poisson processes."""
    times_s = arrivals.poisson(rng(1, "t"), 20.0, Window(duration_s=5000.0))
    probability = np.concatenate([[0.2], 0.8 * adapter_table.zipf(10, 1.0)])
    ids = adapter_table.sample(rng(1, "b"), rng(1, "p"), probability, len(times_s))
    per_window = np.array([window_counts(times_s[ids == adapter], 1.0, 5000) for adapter in range(11)])
    for counts, share in zip(per_window, probability, strict=True):
        assert_mean(counts, 20.0 * share)
    gaps_s = np.diff(times_s[ids == ids[0]])
    assert stats.kstest(gaps_s, "expon", args=(0.0, 1.0 / (20.0 * probability[ids[0]]))).pvalue > 1e-4
    correlations = np.corrcoef(per_window)[np.triu_indices(11, 1)]
    assert np.abs(correlations).max() < 4.5 / np.sqrt(5000)
