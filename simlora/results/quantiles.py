"""Quantiles of very many values that are known in compressed form, equal to numpy's (method "linear") on all of them.

Inter-token gaps come as segments: `steps` gaps first_s, first_s + slope_s, ..., each shared by `weight` requests. Long
simulations have hundreds of millions of gaps but few segments, so the values are counted into bins of their leading
bits (an order-preserving key), and only the segments that meet the bins of a wanted rank are expanded. Knows no
simulator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_KEY_SHIFT = 42
"""Of a float64's 64 bits, 22 stay in a bin's key: sign, exponent and 10 bits of mantissa, so a bin is 0.1 % wide."""
_CHUNK_VALUES = 4_000_000
"""Most values expanded at a time; bounds memory to about 100 MB."""


@dataclass(frozen=True)
class GapSegments:
    """Arrays [num_segments]: segment i holds the values first_s + j * slope_s for 0 <= j < steps, each `weight` times.

    steps >= 0; weight is a whole number >= 0. This is how gaps between tokens are kept without a record per token.
    """

    first_s: Floats
    slope_s: Floats
    steps: Ints
    weight: Floats

    @property
    def last_s(self) -> Floats:
        """[num_segments], the last value of each segment."""
        return self.first_s + self.slope_s * (self.steps - 1)

    @property
    def num_values(self) -> float:
        """Number of values of the expanded list."""
        return float(np.sum(self.weight * self.steps))  # whole numbers: exact in any order

    def select(self, chosen: Bools | slice) -> GapSegments:
        """The chosen segments; chosen: a mask [num_segments], or a slice."""
        return GapSegments(self.first_s[chosen], self.slope_s[chosen], self.steps[chosen], self.weight[chosen])

    def nonempty(self) -> GapSegments:
        """Without the segments that hold no value."""
        return self.select((self.steps > 0) & (self.weight > 0))


def join(parts: Sequence[GapSegments]) -> GapSegments:
    """All segments of all parts."""
    if not parts:
        empty = np.zeros(0)
        return GapSegments(empty, empty, np.zeros(0, dtype=np.int64), empty)
    return GapSegments(
        np.concatenate([part.first_s for part in parts]),
        np.concatenate([part.slope_s for part in parts]),
        np.concatenate([part.steps for part in parts]),
        np.concatenate([part.weight for part in parts]),
    )


def segments_of(values: Sequence[float] | Floats) -> GapSegments:
    """Single values as segments of one step and weight 1."""
    first = np.asarray(values, dtype=np.float64)
    return GapSegments(first, np.zeros_like(first), np.ones(len(first), dtype=np.int64), np.ones_like(first))


def segment_mean(segments: GapSegments) -> float:
    """Mean of all values; NaN when there is none."""
    steps = segments.steps.astype(np.float64)
    total = segments.weight * (segments.first_s * steps + segments.slope_s * (steps * (steps - 1) / 2))
    count = segments.num_values
    return float(np.sum(total)) / count if count else float("nan")


def segment_max(segments: GapSegments) -> float:
    """Largest value; NaN when there is none."""
    segments = segments.nonempty()
    if not len(segments.steps):
        return float("nan")
    return float(np.max(np.maximum(segments.first_s, segments.last_s)))


def segment_quantiles(segments: GapSegments, probabilities: Sequence[float]) -> Floats:
    """[len(probabilities)]: np.quantile(all values, probabilities), to the last bit; NaN when there is no value.

    Costs O(segments) plus the values that share a bin with a wanted rank.
    """
    segments = segments.nonempty()
    wanted = np.asarray(probabilities, dtype=np.float64)
    if not len(segments.steps):
        return np.full(len(wanted), np.nan)
    virtual = wanted * (segments.num_values - 1)
    below = np.floor(virtual)
    ranks = np.concatenate((below, np.minimum(below + 1, segments.num_values - 1)))
    values = _order_statistics(segments, ranks)
    return interpolate(values[: len(wanted)], values[len(wanted) :], virtual - below)


def interpolate(low: Floats, high: Floats, fraction: Floats) -> Floats:
    """Elementwise between two order statistics, rounded as numpy rounds it (from the nearer end)."""
    difference = high - low
    return np.where(fraction >= 0.5, high - difference * (1 - fraction), low + difference * fraction)


def group_quantiles(groups: Ints, values: Floats, num_groups: int, probabilities: Sequence[float]) -> list[Floats]:
    """For each probability, an array [num_groups] of that quantile of `values` in each group; NaN where a group is
    empty.

    groups, values: [num_values]; group ids are 0 .. num_groups - 1.
    """
    order = np.lexsort((values, groups))
    ordered = np.append(values[order], np.nan)
    counts = np.bincount(groups, minlength=num_groups)
    starts = np.cumsum(counts) - counts
    out = []
    for probability in probabilities:
        virtual = probability * np.maximum(counts - 1, 0)
        below = np.floor(virtual).astype(np.int64)
        above = np.minimum(below + 1, np.maximum(counts - 1, 0))
        result = interpolate(ordered[starts + below], ordered[starts + above], virtual - below)
        out.append(np.where(counts > 0, result, np.nan))
    return out


def _order_statistics(segments: GapSegments, ranks: Floats) -> Floats:
    """The values at the given 0-based ranks of the sorted expanded list."""
    first_bin, last_bin = _bin(segments.first_s), _bin(segments.last_s)
    low, high = np.minimum(first_bin, last_bin), np.maximum(first_bin, last_bin)
    origin = int(low.min())
    low, high = low - origin, high - origin
    counts = _count_bins(segments, low, high, origin)
    ends = np.cumsum(counts)
    bins = np.searchsorted(ends, ranks, side="right")
    wanted = np.zeros(len(counts) + 1, dtype=np.int64)
    wanted[bins + 1] = 1
    wanted = np.cumsum(wanted)  # wanted[b] = wanted bins before b, so segments that meet one are found by difference
    met = wanted[high + 1] > wanted[low]
    values, weights = _collect(segments.select(met), wanted, origin)
    order = np.argsort(values, kind="stable")
    values, cumulative = values[order], np.cumsum(weights[order])
    before = ends[bins] - counts[bins]
    in_earlier_wanted_bins = np.concatenate(([0.0], np.cumsum(counts[np.unique(bins)])))[wanted[bins]]
    found: Floats = values[np.searchsorted(cumulative, ranks - before + in_earlier_wanted_bins, side="right")]
    return found


def _bin(values: Floats) -> Ints:
    """A key that never decreases when the value grows: the leading bits, negative numbers mirrored."""
    bits = (values + 0.0).view(np.int64)  # + 0.0 turns -0.0 into 0.0
    return (bits ^ ((bits >> 63) & np.int64(0x7FFFFFFFFFFFFFFF))) >> _KEY_SHIFT


def _count_bins(segments: GapSegments, low: Ints, high: Ints, origin: int) -> Floats:
    """Number of values in each bin. A segment that stays within one bin is counted without expanding it."""
    size = int(high.max()) + 1
    single = low == high
    counts = np.zeros(size)
    counts += np.bincount(low[single], (segments.weight * segments.steps)[single], minlength=size)
    for values, weights in _expand(segments.select(~single)):
        counts += np.bincount(_bin(values) - origin, weights, minlength=size)
    return counts


def _collect(segments: GapSegments, wanted: Ints, origin: int) -> tuple[Floats, Floats]:
    """Values that lie in wanted bins, with their weights."""
    kept_values, kept_weights = [], []
    for values, weights in _expand(segments):
        bins = _bin(values) - origin
        keep = wanted[bins + 1] > wanted[bins]
        kept_values.append(values[keep])
        kept_weights.append(weights[keep])
    return np.concatenate(kept_values), np.concatenate(kept_weights)


def _expand(segments: GapSegments) -> Iterator[tuple[Floats, Floats]]:
    """The expanded values, a bounded number of whole segments at a time."""
    ends = np.cumsum(segments.steps)
    inner = np.searchsorted(ends, np.arange(_CHUNK_VALUES, int(segments.steps.sum()), _CHUNK_VALUES))
    for begin, end in pairwise([0, *np.unique(inner).tolist(), len(ends)]):
        yield expand(segments.select(slice(begin, end)))


def expand(segments: GapSegments) -> tuple[Floats, Floats]:
    """All values, one per step, and their weights."""
    steps = segments.steps
    index = np.arange(int(steps.sum())) - np.repeat(np.cumsum(steps) - steps, steps)
    values = np.repeat(segments.first_s, steps) + np.repeat(segments.slope_s, steps) * index
    return values, np.repeat(segments.weight, steps)
