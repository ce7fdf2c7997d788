"""Pools of equal units."""

from __future__ import annotations

import pytest

from simlora.memory.pools import ADAPTER, KV, Pool


def test_a_shortage_takes_nothing() -> None:
    pool = Pool(9)
    assert pool.allocate(5)
    assert not pool.allocate(5)
    assert pool.free_units == 4 and pool.used() == 5


def test_kinds_are_counted_apart() -> None:
    pool = Pool(100)
    assert pool.allocate(60, KV) and pool.allocate(32, ADAPTER)
    assert (pool.used(KV), pool.used(ADAPTER), pool.free_units) == (60, 32, 8)
    with pytest.raises(ValueError, match="cannot free 33 of 32 units of adapter"):
        pool.free(33, ADAPTER)
    pool.free(32, ADAPTER)
    assert pool.free_units == 40
    pool.check()


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(ValueError, match="a pool of -1"):
        Pool(-1)


def test_negative_counts_are_refused() -> None:
    pool = Pool(10)
    with pytest.raises(ValueError, match="cannot allocate"):
        pool.allocate(-1)
    with pytest.raises(ValueError, match="cannot free"):
        pool.free(-1)


def test_check_finds_lost_units() -> None:
    pool = Pool(10)
    pool.free_units = 9
    with pytest.raises(RuntimeError, match="pool of 10"):
        pool.check()
