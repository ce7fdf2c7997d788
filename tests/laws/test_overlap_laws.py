"""vLLM with loads on a side stream: against a plain twin, coalesced against step by step, and its invariants."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[1]))

from support.cases import LATENCIES, REBUILDING, Case, cases, examples
from support.compare import played, played_naively
from support.engine_laws import assert_conserves, assert_modes_agree, play
from support.fakes import TICK_S, FakeLatency, RoundLatency, make_tiers, share_prefixes
from support.naive_overlap import NaiveOverlap, NaiveOverlapReplica
from support.naive_tiers import NaiveTiers

from simlora.engines.active_adapters import ActiveAdapters
from simlora.engines.overlap_loading import OverlapLoading
from simlora.engines.request_columns import RequestColumns
from simlora.engines.vllm.batch import VllmLimits
from simlora.engines.vllm.overlap import OverlappedScheduler
from simlora.engines.vllm.prefix_cache import PrefixCache
from simlora.latency.step import StepPlan, StepTiming
from simlora.memory.copies import CopyEngine, Stage
from simlora.memory.residents import AdapterTiers, ResidentSet, WeightedLru

LINKS = {"host": 1 / TICK_S, "disk": 1 / TICK_S, "remote": 1 / TICK_S}
"""A byte takes a tick."""


def stages(rank: int, tier: str) -> tuple[Stage, ...]:
    """Copies that take from one to many steps."""
    host = (Stage("host", 1000.0 * rank, 700 * TICK_S),)
    if tier == "host":
        return host
    disk = (Stage("disk", 5000.0 * rank), *host)
    return disk if tier == "disk" else (Stage("remote", 3000.0 * rank, 9000 * TICK_S), *disk)


@dataclass(frozen=True)
class SlowedLatency(RoundLatency):
    """A step beside a copy takes longer."""

    beside: int = 1300

    def price(self, plan: StepPlan) -> StepTiming:
        timing = super().price(plan)
        return timing._replace(base_s=timing.base_s + self.beside * TICK_S) if plan.copying else timing


LATENCY: tuple[Any, ...] = tuple(SlowedLatency(**vars(v)) for v in (*LATENCIES.values(), *REBUILDING.values()))


def slot_cases(**kw: Any) -> st.SearchStrategy[Case]:
    return cases(latencies=LATENCY, adapters=(1, 8), **kw)


def copies() -> CopyEngine:
    return CopyEngine(LINKS)


def engine_of(
    case: Case, prefetch: bool, requests: RequestColumns, tiers: AdapterTiers | None = None
) -> OverlappedScheduler:
    tiers = tiers or make_tiers(case.limits, case.host, case.remote)
    return OverlappedScheduler(case.limits, requests, tiers, OverlapLoading(copies(), stages), prefetch)


def naive_of(case: Case, prefetch: bool) -> NaiveOverlapReplica:
    limits = case.limits
    tiers = NaiveTiers(limits.max_loras, case.host, limits.pinned, case.remote)
    return NaiveOverlapReplica(NaiveOverlap(limits, tiers, copies(), stages, prefetch), case.latency)


def agree(case: Case, prefetch: bool, coalesce: bool = True) -> None:
    simulation = play(lambda requests: engine_of(case, prefetch, requests), case.requests(), case.latency, coalesce)
    naive = naive_of(case, prefetch)
    jobs = naive.run(case.requests())
    assert played(simulation.requests) == played_naively(jobs)
    engine: Any = simulation.replicas[0].engine
    assert engine.slots.evictions == naive.overlap.evictions
    assert_conserves(simulation)


@examples(80)
@given(slot_cases(spare_kv=(400, 600)), st.booleans(), st.booleans())
def test_as_the_plain_twin(case: Case, prefetch: bool, coalesce: bool) -> None:
    """Slots, seats and the token budget bind."""
    agree(case, prefetch, coalesce)


@examples(110)
@given(slot_cases(seats=(2, 8), requests=12), st.booleans())
def test_as_the_plain_twin_under_memory_pressure(case: Case, prefetch: bool) -> None:
    """Everything binds."""
    agree(case, prefetch)


@examples(50)
@given(slot_cases(spare_kv=(400, 600), seats=(1, 3), slots=(1, 2), max_output=6), st.booleans())
def test_many_adapters_in_few_slots(case: Case, prefetch: bool) -> None:
    agree(case, prefetch)


@examples(80)
@given(slot_cases(), st.booleans(), st.integers(1, 3))
def test_coalesced_as_step_by_step(case: Case, prefetch: bool, replicas: int) -> None:
    assert_modes_agree(
        lambda requests: engine_of(case, prefetch, requests),
        case.requests,
        case.latency,
        replicas=replicas,
        router="lora-affinity",
    )


@examples(50)
@given(slot_cases(), st.booleans())
def test_coalesced_as_step_by_step_with_rounded_times(case: Case, prefetch: bool) -> None:
    def make(requests: RequestColumns) -> OverlappedScheduler:
        tiers = make_tiers(case.limits, case.host, case.remote)
        side = OverlapLoading(CopyEngine(dict.fromkeys(LINKS, 1.1e6)), stages)
        return OverlappedScheduler(case.limits, requests, tiers, side, prefetch, ranks=ActiveAdapters())

    assert_modes_agree(make, case.requests, FakeLatency())


@examples(50)
@given(slot_cases(), st.booleans())
def test_coalesced_as_step_by_step_with_use_counts(case: Case, prefetch: bool) -> None:
    def make(requests: RequestColumns) -> OverlappedScheduler:
        pinned, size = case.limits.pinned, case.limits.max_loras
        sets = (ResidentSet(n, WeightedLru(0.5), pinned) for n in (size, case.host))
        tiers = AdapterTiers(*sets, remote=case.remote)
        tiers.preload((), sorted(pinned))
        return engine_of(case, prefetch, requests, tiers)

    assert_modes_agree(make, case.requests, case.latency)


@examples(50)
@given(slot_cases(), st.booleans(), st.integers(1, 3), st.lists(st.integers(0, 3), min_size=16, max_size=16))
def test_coalesced_as_step_by_step_with_prefix_caching(
    case: Case, prefetch: bool, blocks: int, groups: list[int]
) -> None:
    size = case.limits.block_size

    def make(requests: RequestColumns) -> OverlappedScheduler:
        side = OverlapLoading(copies(), stages)
        tiers = make_tiers(case.limits, case.host, case.remote)
        cache = PrefixCache(blocks * size, size, requests)
        return OverlappedScheduler(case.limits, requests, tiers, side, prefetch, prefix_cache=cache)

    def requests() -> RequestColumns:
        made = case.requests()
        share_prefixes(made, blocks * size, groups)
        return made

    assert_modes_agree(make, requests, case.latency)


@examples(80)
@given(slot_cases(spare_kv=(400, 600)), st.booleans())
def test_with_a_slot_for_everyone_each_adapter_is_copied_once(case: Case, prefetch: bool) -> None:
    case = replace(case, host=9).with_limits(max_loras=9, pinned=frozenset())
    simulation = play(lambda requests: engine_of(case, prefetch, requests), case.requests(), case.latency)
    used = {request.adapter for request in simulation.requests if request.adapter}
    counters = simulation.replicas[0].engine.counters()
    assert sum(counters.tiers[1:]) == sum(counters.loads_by_rank.values()) == len(used)
    assert counters.evictions == 0


def test_a_copy_that_begins_lets_the_next_walk_pass_its_request() -> None:
    """Request 1 stands at the head for want of memory; once its adapter is on its way, request 2 comes first."""
    limits = VllmLimits(2, 4, 4, 1, 1, 16, False, enable_chunked_prefill=False, reserve_full_prompt=False)
    case = Case(limits, ((0, 0, 1, 3), (0, 1, 3, 1), (0, 0, 1, 1)), SlowedLatency(), 1)
    for coalesce in (True, False):
        agree(case, True, coalesce)


def test_a_copy_that_begins_takes_the_slot_that_the_walk_still_saw() -> None:
    """Request 2 stops the walk for want of memory; with the only slot taken by request 1's adapter, it is passed."""
    limits = VllmLimits(2, 2, 4, 1, 1, 16, False, skipped_first=False)
    case = Case(limits, ((0, 0, 1, 3), (0, 1, 1, 1), (0, 2, 3, 1), (0, 0, 1, 1)), SlowedLatency(), 1)
    for coalesce in (True, False):
        agree(case, True, coalesce)


def test_who_comes_while_the_engine_waits_for_a_copy_is_passed_over_at_once() -> None:
    """Request 4 finds both slots taken, so it stays before request 3, which is preempted later."""
    rows = ((0, 5, 15, 1), (1000, 0, 1, 1), (40_000, 5, 1, 9), (40_000, 2, 8, 1), (0, 1, 1, 1))
    case = Case(VllmLimits(2, 2, 16, 1, 2, 16, False, reserve_full_prompt=False), rows, SlowedLatency(), 2)
    for coalesce in (True, False):
        agree(case, False, coalesce)
