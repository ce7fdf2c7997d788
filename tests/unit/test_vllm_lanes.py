"""Rules of vLLM's scheduler with pipeline stages, one by one."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1]))

from support.cases import Case
from support.fakes import TICK_S, RoundLatency
from support.staged import StagedLatency, make_pipeline, play_naively, play_pipeline

from simlora.engines.vllm.batch import VllmLimits
from simlora.latency.step import StepPlan

BASE = VllmLimits(
    max_num_seqs=8,
    max_num_batched_tokens=64,
    kv_blocks=400,
    block_size=1,
    max_loras=0,
    max_lora_rank=16,
    async_scheduling=False,
)
LATENCY = RoundLatency(front_out=0)
Plans = list[tuple[float, int, StepPlan]]


def play(case: Case, stages: int) -> tuple[Any, Plans]:
    """The replica at the end, and (time, lane, plan) of every batch."""
    plans: Plans = []

    def note(replica: Any, now_s: float) -> None:
        flight = replica.flights[-1]
        plans.append((now_s, replica.engine.lanes.index(flight.lane), flight.plan))

    simulation = make_pipeline(case, stages, case.requests(), on_boundary=note)
    simulation.run()
    return simulation, plans


def test_a_batch_of_all_requests_leaves_the_other_stages_idle() -> None:
    """Nothing is left to plan until it is back: one lane, and each stage busy for its own part of the step only."""
    case = Case(BASE, ((0, 0, 1, 40),), LATENCY, 0)
    _, plans = play(case, 4)
    assert {lane for _, lane, _ in plans} == {0}
    naive, _ = play_naively(case, 4)
    end_s = naive.busy[-1][-1][1]
    shares = [sum(end - begin for begin, end in spans) / end_s for spans in naive.busy]
    assert sum(shares) <= 1.0


def test_who_comes_while_a_batch_is_planned_gets_a_lane() -> None:
    """The loop looks again when it has planned the first batch; the two lanes never merge."""
    case = Case(BASE, ((0, 0, 1, 20), (500, 0, 1, 20)), LATENCY, 0)
    _, plans = play(case, 2)
    assert [lane for _, lane, _ in plans] == [0, 1] * 20
    assert {plan.num_requests for _, _, plan in plans} == {1}


def test_who_comes_while_the_loop_waits_joins_the_batch_that_comes_back() -> None:
    case = Case(BASE, ((0, 0, 1, 20), (3000, 0, 1, 10)), LATENCY, 0)
    simulation, plans = play(case, 2)
    assert {lane for _, lane, _ in plans} == {0}
    assert [plan.num_requests for _, _, plan in plans[:2]] == [1, 2]
    assert simulation.requests[1].admitted_s == plans[1][0]


def test_two_lanes_overlap_in_the_stages() -> None:
    """A second lane takes the time that one leaves: both together need little longer than one alone."""
    latency = replace(LATENCY, host=100)
    alone = play_pipeline(Case(BASE, ((0, 0, 1, 100),), latency, 0), 2)
    both = play_pipeline(Case(BASE, ((0, 0, 1, 100), (50, 0, 1, 100)), latency, 0), 2)
    assert alone.end_s < both.end_s < 1.25 * alone.end_s


def test_prompts_beyond_the_budget_go_into_another_batch_at_once() -> None:
    case = Case(replace(BASE, max_num_batched_tokens=10), ((0, 0, 10, 3), (0, 0, 10, 3)), LATENCY, 0)
    _, plans = play(case, 2)
    assert [(lane, plan.prefills[0].new_tokens) for _, lane, plan in plans[:2]] == [(0, 10), (1, 10)]


def test_chunks_of_a_prompt_follow_one_another_through_the_stages() -> None:
    """Chunk 2 enters the first stage while chunk 1 is in the second: 40 tokens in less than four whole steps."""
    case = Case(replace(BASE, max_num_batched_tokens=10), ((0, 0, 40, 1),), LATENCY, 0)
    simulation, plans = play(case, 2)
    chunks = [tuple(chunk) for _, _, plan in plans for chunk in plan.prefills]
    assert chunks == [(0, 0, 10), (0, 10, 10), (0, 20, 10), (0, 30, 10)]
    done_s = [now_s + sum(s.host_s + s.gpu_s for s in _stages(plan)) for now_s, _, plan in plans]
    assert plans[1][0] < done_s[0] and plans[2][0] < done_s[1]
    one_stage = play_pipeline(case, 1)
    assert simulation.requests[0].last_token_s < one_stage.requests[0].last_token_s


def _stages(plan: StepPlan) -> Any:
    return StagedLatency(LATENCY, 2).price_stages(plan).stages


def test_seats_and_memory_are_shared_by_all_lanes() -> None:
    case = Case(replace(BASE, max_num_seqs=2), ((0, 0, 1, 20), (500, 0, 1, 20), (100, 0, 1, 5)), LATENCY, 0)
    simulation, _ = play(case, 4)
    first, second, third = simulation.requests
    assert third.admitted_s >= min(first.last_token_s, second.last_token_s)


LORA = replace(BASE, max_loras=1, max_num_batched_tokens=64)


def test_each_batch_may_hold_as_many_adapters_as_there_are_slots() -> None:
    """Two lanes with an adapter each in one slot: neither waits for the other, and both load again at every step."""
    case = Case(LORA, ((0, 1, 1, 6), (500, 2, 1, 6)), LATENCY, 4)
    simulation, plans = play(case, 2)
    assert [lane for _, lane, _ in plans] == [0, 1] * 6
    assert [[adapter for adapter, _, _ in plan.loads] for _, _, plan in plans] == [[1], [2]] * 6
    tiers = [plan.loads[0][2] for _, _, plan in plans]
    assert tiers == ["disk"] * 2 + ["host"] * 10
    engine = simulation.replicas[0].engine
    assert sum(engine.loads_by_rank.values()) == 12 and engine.counters().evictions == 11


def test_lanes_that_share_an_adapter_share_its_slot() -> None:
    case = Case(LORA, ((0, 1, 1, 6), (500, 1, 1, 6)), LATENCY, 4)
    _, plans = play(case, 2)
    assert [len(plan.loads) for _, _, plan in plans] == [1] + [0] * 11


def test_enough_slots_for_all_lanes_load_once() -> None:
    case = Case(replace(LORA, max_loras=2), ((0, 1, 1, 6), (500, 2, 1, 6)), LATENCY, 4)
    _, plans = play(case, 2)
    assert sum(len(plan.loads) for _, _, plan in plans) == 2


def test_a_half_done_prompt_waits_for_a_batch_with_a_place_for_its_adapter() -> None:
    """Its next chunk would be the second adapter of the other lane's batch, which has one slot; nobody overtakes it."""
    limits = replace(LORA, max_num_batched_tokens=10)
    case = Case(limits, ((0, 1, 1, 30), (500, 2, 35, 2), (0, 0, 1, 1)), LATENCY, 4)
    simulation, plans = play(case, 2)
    for _, _, plan in plans:
        assert plan.num_adapters <= 1
    by_request = [[lane for _, lane, plan in plans for chunk in plan.prefills if chunk.request == r] for r in (1, 2)]
    assert len(set(by_request[0])) == 1 and len(by_request[0]) == 4
    assert simulation.requests[2].admitted_s >= plans[-1][0] or by_request[1]


def test_a_request_preempted_in_flight_still_gets_its_token() -> None:
    """The older lane needs a block; the younger one's request is on its way, gets its token, and is computed again."""
    case = Case(replace(BASE, kv_blocks=14), ((0, 0, 4, 10), (500, 0, 4, 10)), LATENCY, 0)
    simulation = play_pipeline(case, 2)
    _, jobs = play_naively(case, 2)
    first, second = simulation.requests
    assert (first.preemptions, second.preemptions) == (0, jobs[1].preemptions) and second.preemptions >= 1
    assert len(jobs[1].token_s) == 10 and second.last_token_s == jobs[1].last_token_s


def test_mappings_are_rebuilt_when_lanes_alternate_and_not_in_a_lane_of_its_own() -> None:
    _, plans = play(Case(BASE, ((0, 0, 1, 20), (500, 0, 1, 5)), LATENCY, 0), 2)
    changed = [plan.batch_changed for _, _, plan in plans]
    assert all(changed[:10]) and not any(changed[12:])


@pytest.mark.parametrize("stages", [2, 4])
def test_stages_follow_each_other_by_the_transfer(stages: int) -> None:
    """A single token's step: all stages one after the other, with the way between them."""
    case = Case(BASE, ((0, 0, 1, 1),), LATENCY, 0)
    latency = StagedLatency(LATENCY, stages, transfer=300)
    simulation = play_pipeline(case, stages, latency=latency)
    one = play_pipeline(case, stages, latency=replace(latency, transfer=0))
    longer = simulation.requests[0].last_token_s - one.requests[0].last_token_s
    assert longer == (stages - 1) * 300 * TICK_S
