"""Shares of adapters and the draw of one per request."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from simlora.workload import adapter_table
from simlora.workload.rng import rng


def test_zipf_shares_follow_the_rank() -> None:
    share = adapter_table.zipf(1000, 1.0)
    assert share.sum() == pytest.approx(1.0)
    assert share[0] / share[9] == pytest.approx(10.0)
    assert adapter_table.zipf(5, 0.0).tolist() == pytest.approx(adapter_table.uniform(5).tolist())


@pytest.mark.parametrize("alpha", [0.1, 0.3, 0.6, 1.0, 2.0])
def test_power_shares_are_those_of_numpys_power_draw(alpha: float) -> None:
    share = adapter_table.power(200, alpha)
    np.testing.assert_allclose(np.cumsum(share), (np.arange(1, 201) / 200) ** alpha)
    drawn = (rng(1, "p").power(alpha, 100_000) * 200).astype(int)
    assert _fits(np.bincount(drawn, minlength=200), share)


def test_explicit_rates_and_classes() -> None:
    assert adapter_table.explicit([1.0, 0.0, 3.0]).tolist() == [0.25, 0.0, 0.75]
    assert adapter_table.classes([2, 3], [0.4, 0.6]).tolist() == pytest.approx([0.2, 0.2, 0.2, 0.2, 0.2])
    assert adapter_table.classes([1, 2], [0.9, 0.1]).tolist() == pytest.approx([0.9, 0.05, 0.05])


def test_samples_follow_the_shares() -> None:
    probability = np.concatenate([[0.3], 0.7 * adapter_table.zipf(50, 1.2)])
    ids = adapter_table.sample(rng(1, "b"), rng(1, "p"), probability, 200_000)
    assert ids.dtype == np.int32
    assert _fits(np.bincount(ids, minlength=51), probability)


def test_an_adapter_of_share_zero_is_never_drawn() -> None:
    ids = adapter_table.sample(rng(1, "b"), rng(1, "p"), np.array([0.0, 0.0, 1.0, 0.0]), 10_000)
    assert set(ids.tolist()) == {2}


def test_more_base_traffic_leaves_the_other_requests_alone() -> None:
    share = adapter_table.zipf(20, 1.0)
    little = adapter_table.sample(rng(1, "b"), rng(1, "p"), np.concatenate([[0.1], 0.9 * share]), 5000)
    much = adapter_table.sample(rng(1, "b"), rng(1, "p"), np.concatenate([[0.6], 0.4 * share]), 5000)
    kept = much > 0
    assert (much[kept] == little[kept]).all()


def test_base_only() -> None:
    assert not adapter_table.sample(rng(1, "b"), rng(1, "p"), np.array([1.0]), 100).any()
    assert not adapter_table.sample(rng(1, "b"), rng(1, "p"), np.array([1.0, 0.0, 0.0]), 100).any()


def _fits(counts: np.ndarray, probability: np.ndarray) -> bool:
    expected = counts.sum() * probability
    large = expected >= 5
    observed = np.append(counts[large], counts[~large].sum())
    wanted = np.append(expected[large], expected[~large].sum())
    if wanted[-1] == 0:
        observed, wanted = observed[:-1], wanted[:-1]
    return bool(stats.chisquare(observed, wanted).pvalue > 1e-4)
