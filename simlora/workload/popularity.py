"""Each adapter's share of the adapter requests ([count], count >= 1, sum 1), and the draw of one per request."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def uniform(count: int) -> Floats:
    """1 / count each."""
    return np.full(count, 1.0 / count)


def zipf(count: int, alpha: float) -> Floats:
    """Share of the k-th adapter proportional to k^-alpha; alpha 0 is uniform."""
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
    """Shares in proportion to stated rates."""
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
    """Adapter id (0 = base model) of each of `size` requests, drawn independently.

    Base or not is drawn from a stream of its own: another base fraction does not change which adapter the others use.
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
