"""The adapters of a run as arrays: rank and share of the requests. Index 0 is the base model, 1..count the adapters."""

from __future__ import annotations

from dataclasses import dataclass

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
from simlora.workload import popularity, ranks
from simlora.workload.rng import rng


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
        rank = ranks.by_permutation(counts, rng(scenario.seed, "ranks"))
    else:
        rank = ranks.by_popularity(counts, share, config.rank_by_popularity)
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
        return popularity.zipf(count, kind.alpha)
    if isinstance(kind, PowerPopularity):
        return popularity.power(count, kind.alpha)
    if isinstance(kind, ExplicitPopularity):
        return popularity.explicit(kind.rates_rps)
    if isinstance(kind, ClassPopularity):
        return popularity.classes([item.count for item in kind.classes], [item.share for item in kind.classes])
    return popularity.uniform(count)
