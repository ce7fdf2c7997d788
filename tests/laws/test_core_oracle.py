"""The engine, its coalescing and its pipeline against a scheduler that walks lists step by step.

All times are multiples of 2**-20 s, so both sides add up without rounding and must agree to the last bit, ties
included.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given

sys.path.append(str(Path(__file__).parents[1]))

from support.cases import LATENCIES, REBUILDING, TABLES, Case, cases, examples
from support.compare import played, played_naively
from support.fakes import RoundLatency

from simlora.engines.vllm.batch import VllmLimits
from simlora.engines.vllm.replica import VllmReplica

ALL = (*LATENCIES.values(), *REBUILDING.values(), *TABLES.values())
AMPLE_KV, AMPLE_SLOTS = (400, 600), (7, 7)


def agree(case: Case, coalesce: bool = True) -> None:
    requests = case.requests()
    simulation = case.simulation(requests, coalesce)
    simulation.run()
    naive, jobs = case.naive()
    assert played(requests) == played_naively(jobs)
    engine = simulation.replicas[0].engine
    assert engine.slots.evictions == naive.engine.evictions
    assert engine.kv.free == naive.engine.free == case.limits.kv_blocks


@examples(160)
@given(cases(latencies=ALL, spare_kv=AMPLE_KV))
def test_with_memory_for_all(case: Case) -> None:
    """Slots, seats and the token budget bind, memory does not."""
    agree(case)


@examples(230)
@given(cases(latencies=ALL, seats=(2, 8), requests=10))
def test_with_preemptions(case: Case) -> None:
    """Everything binds."""
    agree(case)


@examples(160)
@given(cases(latencies=ALL, seats=(20, 20), adapters=(1, 6), slots=AMPLE_SLOTS, pinned=(0, 0)))
def test_with_preemptions_alternating(case: Case) -> None:
    """Memory binds and prompts are chunked; without asynchronous scheduling, and with seats and slots for all."""
    agree(case.with_limits(async_scheduling=False))


@examples(100)
@given(cases(latencies=ALL, spare_kv=AMPLE_KV, seats=(1, 2), adapters=(5, 9), slots=(1, 2), max_output=6))
def test_many_adapters_in_few_slots(case: Case) -> None:
    agree(case)


@examples(100)
@given(cases(latencies=ALL, spare_kv=AMPLE_KV, gaps=(0, 0, 2000, 4000), max_output=3))
def test_bursts_of_short_requests(case: Case) -> None:
    agree(case)


@examples(100)
@given(cases(latencies=ALL, adapters=(0, 0), spare_kv=AMPLE_KV))
def test_without_lora(case: Case) -> None:
    agree(case)


@examples(130)
@given(cases(latencies=(*LATENCIES.values(), *REBUILDING.values()), seats=(2, 8), requests=10))
def test_every_plan(case: Case) -> None:
    """Not only when requests came and went: each step's requests, tokens, contexts, adapters and loads."""
    planned = []

    def note(replica: VllmReplica, now_s: float) -> None:
        if replica.plan is not None:
            planned.append((now_s, replica.plan._replace(max_repeat=1, skipped=0)))

    case.simulation(case.requests(), coalesce=False, on_boundary=note).run()
    naive, _ = case.naive()
    assert planned == [(now_s, plan._replace(skipped=0)) for now_s, plan in naive.plans]


BASE = VllmLimits(
    max_num_seqs=4,
    max_num_batched_tokens=64,
    kv_blocks=100,
    block_size=1,
    max_loras=0,
    max_lora_rank=16,
    async_scheduling=True,
)


def test_a_request_that_has_its_last_token_in_flight_is_the_first_to_lose_its_blocks() -> None:
    """Three blocks are all that request 0 ever needs; request 1 holds one of them until its only token is out."""
    case = Case(replace(BASE, kv_blocks=3), ((0, 0, 1, 3), (0, 0, 1, 1)), RoundLatency(), 0)
    _, jobs = case.naive()
    assert [j.preemptions for j in jobs] == [0, 1]
    agree(case)


@pytest.mark.parametrize("budget, kv_blocks, output", [(2, 7, 3), (64, 10, 7)])
def test_a_preempted_request_comes_before_arrivals_that_wait_for_a_seat(
    budget: int, kv_blocks: int, output: int
) -> None:
    """Request 1 is preempted while request 2 waits for one of two seats, and nothing was ever skipped."""
    limits = replace(BASE, max_num_seqs=2, kv_blocks=kv_blocks, async_scheduling=False, max_num_batched_tokens=budget)
    case = Case(limits, ((0, 0, 4, output), (0, 0, 2, output), (0, 0, 1, 1)), RoundLatency(), 0)
    _, jobs = case.naive()
    assert [j.preemptions for j in jobs] == [0, 1, 0]
    agree(case)


def test_an_arrival_that_was_passed_over_stays_before_a_request_preempted_later() -> None:
    """Request 2 finds both slots taken during a long run; then request 1 is preempted, and request 2 comes first."""
    limits = VllmLimits(3, 3, 17, 1, 2, 16, False, True, False)
    case = Case(limits, ((0, 3, 1, 16), (40_000, 2, 1, 9), (400_000, 1, 1, 1)), RoundLatency(), 2)
    agree(case, coalesce=False)
    agree(case, coalesce=True)


def test_a_base_request_overtakes_one_that_has_no_slot() -> None:
    """The queue was empty after the last plan, so what kept it waiting before that does not matter any more."""
    limits = VllmLimits(2, 4, 57, 1, 1, 16, False, True, False)
    rows = ((0, 0, 30, 1), (0, 0, 51, 1), (0, 0, 56, 1), (0, 0, 1, 1), (0, 2, 1, 11), (400_000, 1, 1, 1), (0, 0, 1, 1))
    case = Case(limits, rows, RoundLatency(), 1)
    agree(case, coalesce=False)
    agree(case, coalesce=True)


def test_nothing_is_passed_over_behind_a_prompt_that_waits_for_the_budget() -> None:
    """Without chunking, request 2 stops the queue; request 3, behind it, has no slot; then request 1 is preempted."""
    limits = VllmLimits(8, 20, 40, 1, 1, 16, False, False, False)
    case = Case(limits, ((0, 1, 10, 30), (0, 1, 10, 30), (230_000, 0, 19, 1), (9000, 2, 1, 1)), RoundLatency(), 1)
    agree(case, coalesce=False)
    agree(case, coalesce=True)


def test_a_prompt_is_computed_in_chunks_of_the_budget() -> None:
    case = Case(replace(BASE, max_num_batched_tokens=10), ((0, 0, 35, 3), (0, 0, 5, 2)), RoundLatency(), 0)
    naive, _ = case.naive()
    chunks = [tuple(prefill) for _, plan in naive.plans for prefill in plan.prefills]
    assert chunks == [(0, 0, 10), (0, 10, 10), (0, 20, 10), (0, 30, 5), (1, 0, 5)]
    agree(case)


def test_an_arrival_at_the_instant_of_a_boundary_joins_the_plan_after_it() -> None:
    """The step ends first, whether the boundary is an event of its own or in the middle of a coalesced run."""
    latency = LATENCIES["ties"]
    first = Case(BASE, ((0, 0, 8, 30),), latency, 0)
    naive, _ = first.naive()
    starts = [now_s for now_s, _ in naive.plans]
    at, following = starts[10], starts[11]
    gap = round(at / 2.0**-20)
    for coalesce in (True, False):
        case = Case(BASE, ((0, 0, 8, 30), (gap, 0, 8, 1)), latency, 0)
        requests = case.requests()
        case.simulation(requests, coalesce).run()
        assert requests[1].routed_s == at
        assert requests[1].admitted_s == following
        agree(case, coalesce)
