"""Stale views against a state written down at every change."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[1]))

from support.cases import LATENCIES, Case, cases, examples
from support.fakes import TICK_S, FakeLatency, RoundLatency, share_prefixes
from support.recording import RecordingReplica, RecordingRouter, same_view, tick_before

from simlora.engines.vllm import replica as replica_module
from simlora.engines.vllm.batch import VllmLimits
from simlora.engines.vllm.prefix_cache import PrefixCache
from simlora.sim.simulation import Simulation

COMPILED = not str(replica_module.__file__).endswith(".py")
Caches = tuple[int, list[int]]
"""Blocks per granule, and which prompts share their text."""

scrapes = st.sampled_from((0.0, 3000 * TICK_S, 0.05, 0.0007))
delays = st.sampled_from((0.0, 2000 * TICK_S, 0.03))


def watch(case: Case, coalesce: bool, caches: Caches | None = None, **kw: Any) -> tuple[Simulation, RecordingRouter]:
    """Play a case in turn over the replicas, keeping every view shown."""
    requests, router = case.requests(), RecordingRouter(kw["replicas"])
    if caches is not None:
        granule_blocks, groups = caches
        granule = granule_blocks * case.limits.block_size
        share_prefixes(requests, granule, groups)
        kw["cache"] = lambda requests: PrefixCache(granule, case.limits.block_size, requests)
    simulation = case.simulation(requests, coalesce, router=router, **kw)
    simulation.run()
    return simulation, router


@pytest.mark.skipif(COMPILED, reason="a compiled VllmReplica cannot be subclassed")
@examples(100)
@given(cases(latencies=(FakeLatency(),)), st.integers(1, 3), scrapes.filter(bool), delays)  # type: ignore[arg-type]
def test_a_view_is_the_state_at_the_last_scrape(case: Case, replicas: int, scrape_s: float, delay_s: float) -> None:
    kw = {"replicas": replicas, "scrape_s": scrape_s, "delay_s": delay_s}
    simulation, router = watch(case, False, replica_type=RecordingReplica, **kw)
    for now_s, views in router.seen:
        tick = tick_before(now_s, scrape_s, delay_s)
        for replica, view in zip(simulation.replicas, views, strict=True):
            assert isinstance(replica, RecordingReplica)
            assert same_view(view, replica.state_at(tick)), (now_s, tick)


@examples(130)
@given(cases(latencies=(*LATENCIES.values(), FakeLatency())), st.integers(1, 3), scrapes, delays)  # type: ignore[arg-type]
def test_views_are_the_same_coalesced(case: Case, replicas: int, scrape_s: float, delay_s: float) -> None:
    seen = [watch(case, c, replicas=replicas, scrape_s=scrape_s, delay_s=delay_s)[1].seen for c in (True, False)]
    assert seen[0] == seen[1]


@examples(260)
@given(
    cases(spare_kv=(20, 60), seats=(3, 8), adapters=(0, 0), gaps=(0, 3000, 40_000), max_prompt=12),
    scrapes,
    delays,
    st.integers(1, 2),
    st.lists(st.integers(0, 1), min_size=16, max_size=16),
)
def test_views_are_the_same_coalesced_with_shared_prefixes(
    case: Case, scrape_s: float, delay_s: float, granule_blocks: int, groups: list[int]
) -> None:
    case, caches = case.with_limits(async_scheduling=True), (granule_blocks, groups)
    kw = {"replicas": 1, "scrape_s": scrape_s, "delay_s": delay_s}
    assert watch(case, True, caches, **kw)[1].seen == watch(case, False, caches, **kw)[1].seen


def test_blocks_that_others_share_stay_in_use_when_a_request_leaves() -> None:
    """Request 1 leaves while request 0 goes on with the granule that both have; request 2 comes later and looks."""
    limits = VllmLimits(3, 3, 32, 1, 0, 16, True)
    case = Case(limits, ((0, 0, 1, 11), (0, 0, 2, 1), (40_000, 0, 1, 1)), RoundLatency(), 0)
    last = [watch(case, c, (1, [0, 0, 0]), replicas=1)[1].seen[-1][1][0] for c in (True, False)]
    assert last[0] == last[1]


def test_fresh_views_show_what_was_routed_just_before() -> None:
    case = Case(VllmLimits(4, 64, 100, 16, 2, 16, True), ((0, 1, 8, 4),) * 3, RoundLatency(), 2)
    _, router = watch(case, True, replicas=1)
    assert [views[0].outstanding for _, views in router.seen] == [0, 1, 2]
    assert [views[0].adapters for _, views in router.seen] == [frozenset(), {1}, {1}]


def test_stale_views_do_not() -> None:
    case = Case(VllmLimits(4, 64, 100, 16, 2, 16, True), ((0, 1, 8, 4),) * 3, RoundLatency(), 2)
    _, router = watch(case, True, replicas=1, scrape_s=0.05)
    assert [views[0].outstanding for _, views in router.seen] == [0, 0, 0]


def test_a_view_arrives_delayed() -> None:
    """Scrapes at 0, 0.1, 0.2, ...; each is known 0.06 s later."""
    latency = RoundLatency(host=0, gpu=1 << 20, front_in=0)  # a step takes 1 s
    gap = 1 << 16  # 1/16 s
    case = Case(VllmLimits(8, 64, 100, 16, 0, 16, False), ((gap, 0, 8, 4),) * 6, latency, 0)
    _, router = watch(case, True, replicas=1, scrape_s=0.1, delay_s=0.06)
    arrivals = [now_s for now_s, _ in router.seen]
    assert arrivals == [0.0625 * i for i in range(1, 7)]
    assert [views[0].outstanding for _, views in router.seen] == [0, 0, 1, 1, 3, 4]
