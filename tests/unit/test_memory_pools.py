"""Pools of equal units."""

from __future__ import annotations

import pytest

from simlora.memory.pools import ADAPTER, KV, RESERVED, BlockPool, Pool


def test_one_block_is_the_null_block() -> None:
    pool = BlockPool(100)
    assert pool.total == 100 and pool.usable == pool.free_units == 99
    assert pool.used(RESERVED) == 1
    assert pool.allocate(99) and not pool.allocate(1)
    pool.check()


def test_a_shortage_takes_nothing() -> None:
    pool = BlockPool(10)
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


def test_reserved_units_stay() -> None:
    pool = Pool(10, reserved=3)
    assert pool.usable == 7
    with pytest.raises(ValueError, match="reserved"):
        pool.free(1, RESERVED)


@pytest.mark.parametrize(("total", "reserved"), [(5, 6), (5, -1)])
def test_reservation_must_fit(total: int, reserved: int) -> None:
    with pytest.raises(ValueError, match="reserved"):
        Pool(total, reserved)


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
