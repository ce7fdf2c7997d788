"""Length distributions: bounds, medians, whole numbers."""

from __future__ import annotations

import numpy as np

from simlora.workload import requests
from simlora.workload.rng import rng

SIZE = 50_000


def test_lognormal_keeps_its_median_and_bounds() -> None:
    values = requests.lognormal(rng(1, "l"), SIZE, 150.0, 0.9, 20, 4000)
    assert values.dtype == np.int32
    assert (values.min(), values.max()) == (20, 4000)
    # Standard error of a lognormal's median: median * sigma * sqrt(pi / 2 / n).
    assert abs(np.median(values) - 150.0) < 4.0 * 150.0 * 0.9 * np.sqrt(np.pi / 2 / SIZE) + 0.5


def test_lognormal_mean_without_bounds() -> None:
    values = requests.lognormal(rng(1, "l"), SIZE, 1000.0, 0.5)
    expected = 1000.0 * np.exp(0.5**2 / 2)
    error = 4.0 * expected * np.sqrt((np.exp(0.5**2) - 1) / SIZE)
    assert abs(values.mean() - expected) < error


def test_lognormal_survives_an_absurd_tail() -> None:
    values = requests.lognormal(rng(1, "l"), 1000, 1e7, 10.0)
    assert values.min() >= 1 and values.max() == requests.MAX_TOKENS


def test_sigma_zero_is_the_median() -> None:
    assert set(requests.lognormal(rng(1, "l"), 10, 42.0, 0.0).tolist()) == {42}


def test_uniform_includes_both_ends_evenly() -> None:
    values = requests.uniform(rng(1, "l"), 60_000, 8, 13)
    counts = np.bincount(values)[8:]
    assert len(counts) == 6
    assert (np.abs(counts - 10_000) < 4.0 * np.sqrt(10_000)).all()


def test_fixed() -> None:
    assert requests.fixed(3, 7).tolist() == [7, 7, 7]


def test_empirical_draws_only_what_was_observed() -> None:
    observed = np.array([3, 5, 5, 90], dtype=np.int32)
    values = requests.empirical(rng(1, "l"), 40_000, observed)
    assert set(values.tolist()) == {3, 5, 90}
    assert abs(np.mean(values == 5) - 0.5) < 4.0 * np.sqrt(0.25 / 40_000)


def test_more_requests_only_append() -> None:
    few = requests.uniform(rng(1, "l"), 10, 1, 1000), requests.lognormal(rng(1, "l"), 10, 100.0, 1.0)
    many = requests.uniform(rng(1, "l"), 99, 1, 1000), requests.lognormal(rng(1, "l"), 99, 100.0, 1.0)
    assert all(short.tolist() == long[:10].tolist() for short, long in zip(few, many, strict=True))
