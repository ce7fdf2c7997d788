"""Punica's popularity study: what batching across adapters is worth (arXiv:2310.18547; code of January 2024).

A claim of an order of magnitude (12 times) over systems that batch one adapter at a time, on an A100, of which there is
no calibration: bands, not figures, and every step is marked as extrapolated.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import popularity as study
import pytest

REQUESTS = 200


@cache
def outcome(engine: str, popularity: str) -> study.Outcome:
    return study.measure(engine, popularity, REQUESTS)


def gain(over: str, popularity: str, engine: str = "sgmv") -> float:
    return outcome(engine, popularity).tokens_per_s / outcome(over, popularity).tokens_per_s


def test_an_order_of_magnitude_when_every_request_has_its_own_adapter() -> None:
    assert 6 < gain("grouped", "distinct") < 32
    assert outcome("grouped", "distinct").batch == pytest.approx(1.0, abs=0.01)
    assert outcome("sgmv", "distinct").batch > 15


def test_none_when_all_requests_share_one() -> None:
    assert 0.8 < gain("grouped", "identical") < 1.25
    assert outcome("grouped", "identical") == outcome("sequential", "identical")


@pytest.mark.parametrize("popularity", ["uniform", "zipf"])
def test_something_in_between_for_popularities_in_between(popularity: str) -> None:
    assert gain("grouped", "identical") < gain("grouped", popularity) < gain("grouped", "distinct")


def test_one_kernel_pair_per_adapter_lies_in_between() -> None:
    """It shares the base model's pass, but not its own."""
    assert 1.3 < gain("grouped", "distinct", engine="sequential") < gain("grouped", "distinct") / 2


@pytest.mark.parametrize("engine", ["sgmv", "simlora"])
def test_kernels_for_many_adapters_hardly_mind_how_many(engine: str) -> None:
    """A few milliseconds a token at most; loads of 200 distinct adapters included."""
    spread = [outcome(engine, popularity).tokens_per_s for popularity in study.POPULARITIES]
    assert max(spread) / min(spread) < 1.3


def test_a_merged_adapter_is_fastest_alone_and_pays_for_every_switch() -> None:
    assert gain("sgmv", "identical", engine="merged-swap") > 1
    assert gain("sgmv", "distinct", engine="merged-swap") < 0.2


def test_every_figure_is_marked_as_extrapolated() -> None:
    for engine in study.ENGINES:
        assert outcome(engine, "zipf").extrapolated == pytest.approx(1.0, abs=0.02)


def test_the_popularities_are_punicas() -> None:
    counts = {p: study.np.bincount(study.adapters_of(p, 1000))[1:].tolist() for p in study.POPULARITIES}
    assert counts["identical"] == [1000]
    assert counts["distinct"] == [1] * 1000
    assert len(counts["uniform"]) == 32 and set(counts["uniform"]) == {31, 32}
    groups = counts["zipf"][:-1]  # the last one is cut to the sum
    assert sum(counts["zipf"]) == 1000
    assert all(b / a == pytest.approx(1.5, rel=0.03) for a, b in pairwise(groups[-6:]))
