"""The adapters of a run as arrays: rank and share of the requests. Index 0 is the base model, 1..count the adapters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from simlora.scenario.adapters import (
    AdaptersConfig,
    ClassPopularity,
    ExplicitPopularity,
    PowerPopularity,
    ZipfPopularity,
)
from simlora.scenario.root import Scenario
from simlora.workload.rng import rng

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]


@dataclass(frozen=True)
class AdapterTable:
    """What is known of every adapter before a request arrives."""

    count: int
    rank: npt.NDArray[np.int32]
    """[count + 1]; rank[0] = 0."""
    probability: npt.NDArray[np.float64]
    """[count + 1], share of requests, sum 1; [0] is the base model's."""
    names: tuple[str, ...] | None = None
    """Of adapters 1, 2, ...; None: they go by their number."""


def build_adapters(scenario: Scenario) -> AdapterTable:
    """The scenario's adapters. Ranks depend on `ranks`, `count` and the seed only, not on popularity, unless
    rank_by_popularity says so."""
    config = scenario.adapters
    share = shares(config)
    # Without adapters, all requests are for the base model.
    base = config.base_fraction if config.count else 1.0
    counts = config.rank_counts()
    if config.rank_by_popularity is None:
        rank = by_permutation(counts, rng(scenario.seed, "ranks"))
    else:
        rank = by_popularity(counts, share, config.rank_by_popularity)
    return AdapterTable(
        count=config.count,
        rank=np.concatenate([np.zeros(1, dtype=np.int32), rank]),
        probability=np.concatenate([[base], (1.0 - base) * share]),
    )


def shares(config: AdaptersConfig) -> npt.NDArray[np.float64]:
    """Share of each adapter in the requests that are not for the base model; [count], sum 1."""
    kind, count = config.popularity, config.count
    if not count:
        return np.zeros(0)
    if isinstance(kind, ZipfPopularity):
        return zipf(count, kind.alpha)
    if isinstance(kind, PowerPopularity):
        return power(count, kind.alpha)
    if isinstance(kind, ExplicitPopularity):
        return explicit(kind.rates_rps)
    if isinstance(kind, ClassPopularity):
        return classes([item.count for item in kind.classes], [item.share for item in kind.classes])
    return uniform(count)


def by_permutation(counts: Mapping[int, int], generator: np.random.Generator) -> Ints:
    """Ranks of adapters 1, 2, ... by a seeded permutation, hence independent of their popularity.

    counts[rank] adapters get each rank, whatever the order in which `counts` lists them.
    """
    return generator.permutation(_sorted(counts))


def by_popularity(
    counts: Mapping[int, int], probability: npt.NDArray[np.float64], order: Literal["largest-first", "smallest-first"]
) -> Ints:
    """[num_adapters]: ranks such that the most popular adapters have the largest, or smallest; equally popular ones by
    their id. probability: [num_adapters]; counts: rank -> adapters, summing to num_adapters."""
    ranks = _sorted(counts)
    result = np.empty_like(ranks)
    result[np.argsort(-probability, kind="stable")] = ranks[::-1] if order == "largest-first" else ranks
    return result


def _sorted(counts: Mapping[int, int]) -> Ints:
    ranks = sorted(counts)
    return np.repeat(np.array(ranks, dtype=np.int32), [counts[rank] for rank in ranks])


def uniform(count: int) -> Floats:
    """[count], 1 / count each."""
    return np.full(count, 1.0 / count)


def zipf(count: int, alpha: float) -> Floats:
    """[count], summing to 1: the share of the k-th adapter is proportional to k^-alpha; alpha 0 is uniform."""
    weights: Floats = np.arange(1, count + 1, dtype=np.float64) ** -alpha
    weights /= weights.sum()
    return weights


def power(count: int, alpha: float) -> Floats:
    """Shares of index int(count * X), X with density alpha * x^(alpha - 1) on [0, 1]: P(first k) = (k / count)^alpha.

    The generator of the S-LoRA paper (Sheng et al., 2024, benchmarks/trace.py), where alpha is this exponent and not
    Zipf's: 1 is uniform, below 1 the first adapters are favoured, above 1 the last.
    """
    return np.diff((np.arange(count + 1, dtype=np.float64) / count) ** alpha)


def explicit(rates_rps: Sequence[float]) -> Floats:
    """[len(rates_rps)], summing to 1: shares in proportion to stated rates."""
    rates: Floats = np.array(rates_rps, dtype=np.float64)
    rates /= rates.sum()
    return rates


def classes(counts: Sequence[int], shares: Sequence[float]) -> Floats:
    """counts[i] adapters share shares[i] of the requests evenly; shares are normalised to sum 1."""
    total = float(np.sum(shares))
    return np.concatenate([np.full(count, share / total / count) for count, share in zip(counts, shares, strict=True)])


def sample(
    base: np.random.Generator, adapters: np.random.Generator, probability: Floats, size: int
) -> npt.NDArray[np.int32]:
    """[size]: adapter id (0 = base model) of each request, drawn independently.

    probability: [num_adapters + 1], of the base model first. Base or not is drawn from a stream of its own: another
    base fraction does not change which adapter the others use.
    """
    is_base = base.random(size) < probability[0]
    bounds = np.cumsum(probability[1:])
    uniforms = adapters.random(size)
    if not len(bounds) or bounds[-1] <= 0.0:
        return np.zeros(size, dtype=np.int32)
    # side="right" skips adapters of probability 0; the clamp guards against a product that rounds up to the last bound.
    last = int(np.flatnonzero(probability[1:])[-1])
    index = np.minimum(np.searchsorted(bounds, uniforms * bounds[-1], side="right"), last)
    return np.where(is_base, 0, index + 1).astype(np.int32)
