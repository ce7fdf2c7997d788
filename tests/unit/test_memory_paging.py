"""Paging against contiguous allocation."""

from __future__ import annotations

import pytest

from simlora.engines.fit import require_fit
from simlora.engines.slora.fragmentation import ContiguousPool, PagedPool, pool_advice, study
from simlora.memory.ledger import EngineLedger
from simlora.scenario.load import scenario_from_dict


def test_paging_serves_what_fragmentation_refuses() -> None:
    paged, contiguous = PagedPool(1000, 10), ContiguousPool(1000)
    for key in range(10):
        assert paged.allocate(key, [100]) and contiguous.allocate(key, [100])
    for key in range(0, 10, 2):
        paged.free(key)
        contiguous.free(key)
    assert paged.allocate("large", [300]) and not contiguous.allocate("large", [300])
    report = contiguous.report()
    assert (report.free_bytes, report.largest_free_bytes) == (500, 100)
    assert report.external_fraction == pytest.approx(0.8)
    assert (report.refused, report.refused_by_fragmentation) == (1, 1)
    assert paged.report().external_fraction == 0


def test_gaps_merge_and_refused_allocations_take_nothing() -> None:
    pool = ContiguousPool(100)
    assert pool.allocate("a", [40, 40]) and not pool.allocate("b", [10, 30])
    assert pool.report().free_bytes == 20 and pool.report().refused_by_fragmentation == 0
    pool.free("a")
    assert pool.report().largest_free_bytes == 100
    assert pool.allocate("c", [100])


def test_pages_lose_the_rest_of_the_last_one() -> None:
    pool = PagedPool(105, 10)
    assert pool.allocate("a", [1, 15]) and not pool.allocate("b", [71])
    report = pool.report()
    assert (report.total_bytes, report.held_bytes, report.allocated_bytes) == (100, 16, 30)
    assert (
        1 - report.held_bytes / report.allocated_bytes == pytest.approx(14 / 30)
        and report.refused_by_fragmentation == 0
    )
    with pytest.raises(ValueError, match="pieces"):
        pool.allocate("c", [0])
    with pytest.raises(KeyError):
        pool.free("b")
    for wrong in (lambda: PagedPool(10, 11), lambda: ContiguousPool(0)):
        with pytest.raises(ValueError, match="bytes"):
            wrong()


def test_a_full_pool_of_pages_and_of_contiguous_pieces() -> None:
    """Pages lose a little inside; contiguous pieces scatter what is free, and evict although enough is free."""
    sections = {"model": "llama-2-7b", "gpu": "a10g", "adapters": {"count": 50, "ranks": {8: 0.5, 64: 0.5}}}
    found = {}
    for page in ("row", "16KiB", "64KiB"):
        scenario = scenario_from_dict({**sections, "engine": {"kind": "slora", "page": page, "max_model_len": 4096}})
        ledger = require_fit(scenario)
        assert isinstance(ledger, EngineLedger)
        result = study(scenario, ledger)
        assert result is not None and "fragmentation" in " ".join(pool_advice(scenario, ledger))
        found[page] = result
    assert found["row"].paged_lost == 0.0 < found["16KiB"].paged_lost < found["64KiB"].paged_lost < 0.05
    assert all(0.3 < result.contiguous_lost < 1.0 and result.contiguous_evictions > 0.05 for result in found.values())
