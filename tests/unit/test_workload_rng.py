"""Random streams: equal names give equal draws, other names unrelated ones."""

from __future__ import annotations

import zlib

import numpy as np

from simlora.workload.rng import rng


def test_a_stream_depends_on_seed_and_name_only() -> None:
    assert rng(1, "arrivals").random(4).tolist() == rng(1, "arrivals").random(4).tolist()
    assert rng(1, "arrivals").random() != rng(2, "arrivals").random()


def test_streams_of_one_seed_are_uncorrelated() -> None:
    first, second = rng(1, "arrivals").standard_normal(100_000), rng(1, "ranks").standard_normal(100_000)
    assert abs(np.corrcoef(first, second)[0, 1]) < 4.0 / np.sqrt(100_000)


def test_a_stream_is_the_same_in_every_process() -> None:
    """By its definition: hash() of a text would differ from one process to the next."""
    expected = np.random.default_rng(np.random.SeedSequence([1, zlib.crc32(b"arrivals")]))
    assert rng(1, "arrivals").random(3).tolist() == expected.random(3).tolist()
