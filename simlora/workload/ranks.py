"""Which rank each adapter has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]
Order = Literal["largest-first", "smallest-first"]


def by_permutation(counts: Mapping[int, int], generator: np.random.Generator) -> Ints:
    """Ranks of adapters 1, 2, ... by a seeded permutation, hence independent of their popularity.

    counts[rank] adapters get each rank, whatever the order in which `counts` lists them.
    """
    return generator.permutation(_sorted(counts))


def by_popularity(counts: Mapping[int, int], probability: npt.NDArray[np.float64], order: Order) -> Ints:
    """Ranks such that the most popular adapters have the largest, or smallest; equally popular ones by their id."""
    ranks = _sorted(counts)
    result = np.empty_like(ranks)
    result[np.argsort(-probability, kind="stable")] = ranks[::-1] if order == "largest-first" else ranks
    return result


def _sorted(counts: Mapping[int, int]) -> Ints:
    ranks = sorted(counts)
    return np.repeat(np.array(ranks, dtype=np.int32), [counts[rank] for rank in ranks])
