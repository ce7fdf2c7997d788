"""Token counts of prompts and outputs: integers of at least 1, one per request.

The i-th length depends on the stream and on i only, never on how many requests there are.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]

MAX_TOKENS = 2**31 - 1
"""Largest count that a RequestTable holds (int32)."""


def lognormal(
    generator: np.random.Generator, size: int, median: float, sigma: float, minimum: int = 1, maximum: int | None = None
) -> Ints:
    """exp(Normal(ln median, sigma)), rounded, then clamped to [minimum, maximum].

    Clamping keeps the median but gathers the tail's mass at the bounds, so the mean lies below the unbounded
    median * exp(sigma^2 / 2).
    """
    values = np.exp(math.log(median) + sigma * generator.standard_normal(size))
    return np.clip(np.rint(values), minimum, MAX_TOKENS if maximum is None else maximum).astype(np.int32)


def uniform(generator: np.random.Generator, size: int, minimum: int, maximum: int) -> Ints:
    """Integers from minimum to maximum, both included."""
    return generator.integers(minimum, maximum, size, dtype=np.int32, endpoint=True)


def fixed(size: int, tokens: int) -> Ints:
    """The same length for all."""
    return np.full(size, tokens, dtype=np.int32)


def empirical(generator: np.random.Generator, size: int, observed: Ints) -> Ints:
    """Observed lengths, resampled with replacement."""
    return observed[generator.integers(0, len(observed), size)]
