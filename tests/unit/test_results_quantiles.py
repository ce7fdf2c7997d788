"""Compressed quantiles against numpy on the expanded list: equal, not close."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simlora.results import quantiles
from simlora.results.quantiles import (
    GapSegments,
    expand,
    group_quantiles,
    join,
    segment_max,
    segment_mean,
    segment_quantiles,
    segments_of,
)

PROBABILITIES = (0.0, 0.1, 0.5, 0.9, 0.95, 0.99, 1.0)

gap = st.one_of(st.sampled_from([0.0, 0.007, 0.0071, 0.033]), st.floats(0, 1e3, allow_subnormal=False))
slope = st.one_of(st.just(0.0), st.floats(-1e-6, 1e-3))
segment = st.tuples(gap, slope, st.integers(0, 40), st.integers(0, 9))


def build(rows: list[tuple[float, float, int, int]]) -> GapSegments:
    columns = list(zip(*rows, strict=True)) if rows else [(), (), (), ()]
    return GapSegments(
        np.array(columns[0], dtype=np.float64),
        np.array(columns[1], dtype=np.float64),
        np.array(columns[2], dtype=np.int64),
        np.array(columns[3], dtype=np.float64),
    )


def expanded(segments: GapSegments) -> np.ndarray:
    values, weights = expand(segments)
    return np.repeat(values, weights.astype(np.int64))


@settings(max_examples=100)
@given(st.lists(segment, max_size=30), st.sampled_from([5, 64, 4_000_000]))
def test_equal_to_numpy_on_the_expanded_list(rows, chunk):
    segments = build(rows)
    every = expanded(segments)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantiles, "_CHUNK_VALUES", chunk)
        result = segment_quantiles(segments, PROBABILITIES)
    if not len(every):
        assert np.isnan(result).all()
        return
    np.testing.assert_array_equal(result, np.quantile(every, PROBABILITIES))
    assert segment_max(segments) == every.max()
    assert segment_mean(segments) == pytest.approx(every.mean(), rel=1e-9, abs=1e-12)


def test_large_skewed_list_equals_numpy():
    rng = np.random.default_rng(3)
    n = 1500
    segments = GapSegments(
        rng.lognormal(-5, 0.3, n),
        rng.uniform(0, 1e-5, n),
        rng.integers(1, 60, n),
        rng.integers(1, 200, n).astype(float),
    )
    segments.first_s[0] = 12.5  # one outlier must not blur the bulk
    np.testing.assert_array_equal(
        segment_quantiles(segments, PROBABILITIES), np.quantile(expanded(segments), PROBABILITIES)
    )


def test_join_and_single_values():
    both = join([segments_of([3.0, 1.0]), segments_of([2.0])])
    assert segment_quantiles(both, [0.5]).tolist() == [2.0]
    assert both.num_values == 3
    assert np.isnan(segment_mean(join([])))
    assert np.isnan(segment_max(join([])))


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0, 100)), max_size=60))
def test_group_quantiles_equal_numpy(rows):
    groups = np.array([row[0] for row in rows], dtype=np.int64)
    values = np.array([row[1] for row in rows], dtype=np.float64)
    p50, p99 = group_quantiles(groups, values, 7, (0.5, 0.99))
    for group in range(7):
        own = values[groups == group]
        if len(own):
            assert (p50[group], p99[group]) == (np.quantile(own, 0.5), np.quantile(own, 0.99))
        else:
            assert np.isnan(p50[group]) and np.isnan(p99[group])
