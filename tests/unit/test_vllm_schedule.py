"""The rules of vLLM's scheduler, one small case each."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1]))

from support.stepping import Stepper, append, chunks, limits

from simlora.engines.base import KV, SEQS, SLOTS, TOKENS
from simlora.engines.request import Request
from simlora.scenario.load import scenario_from_dict
from simlora.sim.build import build_inputs, make_replicas

# --- budget and chunks --------------------------------------------------------------------------------------------


def test_decodes_come_before_prompts_and_prompts_share_what_is_left() -> None:
    s = Stepper(limits(max_num_batched_tokens=20))
    s.add((0, 5, 9))
    s.step()
    s.add((0, 12, 9), (0, 30, 9))
    plan = s.step()
    assert plan is not None
    assert chunks(plan) == [(1, 0, 12), (2, 0, 7)]
    assert (plan.decode_count, plan.num_tokens, plan.num_requests) == (1, 20, 3)
    assert chunks(s.step()) == [(2, 7, 18)]
    assert chunks(s.step()) == [(2, 25, 5)]
    assert chunks(s.step()) == []


def test_what_the_half_done_prompt_leaves_goes_to_the_next_one() -> None:
    s = Stepper(limits(max_num_batched_tokens=10))
    s.add((0, 14, 1), (0, 14, 1))
    assert chunks(s.step()) == [(0, 0, 10)]
    assert chunks(s.step()) == [(0, 10, 4), (1, 0, 6)]
    assert chunks(s.step()) == [(1, 6, 8)]


def test_without_chunking_a_prompt_that_exceeds_what_is_left_stops_the_queue() -> None:
    s = Stepper(limits(max_num_batched_tokens=20, enable_chunked_prefill=False))
    s.add((0, 15, 2), (0, 6, 2), (0, 1, 2))
    assert chunks(s.step()) == [(0, 0, 15)]
    assert s.engine.blocked == TOKENS
    assert chunks(s.step()) == [(1, 0, 6), (2, 0, 1)]


def test_the_plan_counts_contexts_and_adapters() -> None:
    s = Stepper(limits())
    s.add((1, 10, 9), (2, 20, 9), (1, 5, 9), (0, 7, 9))
    plan = s.step()
    assert plan is not None
    assert (plan.decode_count, plan.decode_context_tokens, plan.num_adapters, plan.lora_tokens) == (0, 0, 2, 35)
    assert [load[0] for load in plan.loads] == [1, 2]
    assert s.engine.rank_tokens == 15 * 8 + 20 * 16
    plan = s.step()
    assert plan is not None
    assert (plan.decode_count, plan.decode_context_tokens, plan.num_adapters, plan.lora_tokens) == (4, 42, 2, 3)
    assert (plan.loads, plan.max_rank, s.engine.rank_tokens) == ((), 64, 2 * 8 + 16)
    plan = s.step()
    assert plan is not None and plan.decode_context_tokens == 46


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_step_is_marked_changed_only_when_its_requests_changed(asynchronous: bool) -> None:
    s = Stepper(limits(async_scheduling=asynchronous))
    s.add((0, 5, 3), (0, 5, 5))
    changed = []
    while (plan := s.step()) is not None:
        changed.append(plan.batch_changed)
    assert changed == [True, True, False, True, False]


# --- seats --------------------------------------------------------------------------------------------------------


def test_seats() -> None:
    s = Stepper(limits(max_num_seqs=2))
    assert s.add((0, 5, 2), (0, 5, 3), (0, 5, 2)) == [True, True, True]
    assert chunks(s.step()) == [(0, 0, 5), (1, 0, 5)]
    assert s.engine.blocked == SEQS
    assert s.add((0, 5, 2)) == [False]
    assert chunks(s.step()) == []
    assert s.finished == [0]
    assert chunks(s.step()) == [(2, 0, 5)]


def test_with_a_token_in_flight_the_seat_is_kept() -> None:
    """Asynchronous: the plan after the last one of a request still counts its seat, the next one does not."""
    s = Stepper(limits(max_num_seqs=1, async_scheduling=True))
    s.add((0, 5, 2), (0, 5, 1))
    plans, delivered = [], []
    for _ in range(6):
        plans.append(s.step())
        delivered.append((s.first, s.finished))
    assert [chunks(p) for p in plans] == [[(0, 0, 5)], [], [], [(1, 0, 5)], [], []]
    assert [p is None for p in plans] == [False, False, True, False, True, True]
    assert delivered == [([], []), ([0], []), ([], [0]), ([], []), ([1], [1]), ([], [])]


# --- adapters -----------------------------------------------------------------------------------------------------


def test_a_request_without_a_slot_is_skipped_and_others_pass() -> None:
    s = Stepper(limits(max_loras=1))
    assert s.add((1, 5, 3), (2, 5, 1), (1, 5, 1), (0, 5, 1)) == [True] * 4
    assert [c[0] for c in chunks(s.step())] == [0, 2, 3]
    assert s.engine.blocked == SLOTS
    assert s.engine.waiting_by_reason() == (1, 0, 0, 0)
    assert s.add((2, 5, 1)) == [False]
    assert s.add((1, 5, 1), (0, 5, 1)) == [True, True]
    assert [c[0] for c in chunks(s.step())] == [5, 6]
    s.step()
    assert [c[0] for c in chunks(s.step())] == [1, 4]


def test_a_plan_counts_the_requests_that_it_walks_past() -> None:
    s = Stepper(limits(max_loras=1))
    s.add((1, 5, 5), (2, 5, 1), (1, 5, 5), (2, 5, 1), (3, 5, 1))
    plans = [s.step() for _ in range(2)]
    assert [plan.skipped for plan in plans if plan is not None] == [3, 3]


@pytest.mark.parametrize("changes", [{"max_num_seqs": 1}, {"max_num_seqs": 2, "max_num_batched_tokens": 5}])
def test_a_plan_that_does_not_look_at_the_queue_walks_past_nobody(changes: dict[str, int]) -> None:
    """The pass ends before its first look: at the only seat, or at a prompt that takes the whole budget."""
    s = Stepper(limits(max_loras=1, **changes))
    s.add((1, 10, 5))
    s.step()
    s.add((2, 5, 1), (3, 5, 1))
    plan = s.step()
    assert plan is not None and plan.num_tokens in (1, 5)
    assert plan.skipped == 0


def test_nothing_ages_a_skipped_request_starves_while_the_slot_is_busy() -> None:
    s = Stepper(limits(max_loras=1))
    s.add((1, 5, 3), (2, 5, 1))
    for _ in range(20):
        s.step()
        s.add((1, 5, 3))
    assert s.requests[1].admitted_s != s.requests[1].admitted_s
    assert s.admissions()[-1] == 1


def test_base_requests_need_no_slot() -> None:
    s = Stepper(limits(max_loras=1))
    s.add((1, 5, 5), (2, 5, 1))
    s.step()
    assert s.add((0, 5, 1)) == [True]
    assert [c[0] for c in chunks(s.step())] == [2]


def test_pinned_adapters_keep_their_slots() -> None:
    s = Stepper(limits(max_loras=2, pinned=frozenset({7})))
    s.add((1, 5, 4), (2, 5, 1), (7, 5, 1))
    plan = s.step()
    assert plan is not None
    assert [c[0] for c in chunks(plan)] == [0, 2], "one slot is left for the others"
    assert [load[0] for load in plan.loads] == [1], "a pinned adapter is there from the beginning"
    assert s.add((7, 5, 1)) == [True]


def test_loads_by_tier_and_evictions() -> None:
    """Two slots over a host cache of three: the adapter used longest ago makes room."""
    s = Stepper(limits(max_loras=2), host=3)
    tiers = []
    for adapter in (1, 2, 1, 3, 2, 4, 3):
        s.add((adapter, 5, 1))
        plan = s.step()
        assert plan is not None
        tiers.append([load[2] for load in plan.loads])
        s.step()
    assert tiers == [["disk"], ["disk"], [], ["disk"], ["host"], ["disk"], ["host"]]
    assert s.engine.slots.evictions == 4
    assert s.engine.slots.tier_counts == [1, 2, 4, 0]
    assert [r.load_tier for r in s.requests] == [2, 2, 0, 2, 1, 2, 1]


# --- memory -------------------------------------------------------------------------------------------------------


def test_memory_stops_the_queue_even_for_those_that_would_fit() -> None:
    s = Stepper(limits(kv_blocks=30))
    s.add((0, 10, 2), (0, 25, 2), (0, 1, 2))
    assert chunks(s.step()) == [(0, 0, 10)]
    assert s.engine.blocked == KV
    assert s.add((0, 1, 1)) == [False]


@pytest.mark.parametrize("reserve, first", [(True, [(0, 0, 10)]), (False, [(0, 0, 10), (1, 0, 10)])])
def test_the_whole_prompt_must_fit_where_it_is_reserved(reserve: bool, first: list[tuple[int, int, int]]) -> None:
    s = Stepper(limits(kv_blocks=30, max_num_batched_tokens=20, reserve_full_prompt=reserve))
    s.add((0, 10, 2), (0, 25, 2))
    assert chunks(s.step()) == first


def test_the_tail_is_preempted_and_nobody_is_admitted_in_that_step() -> None:
    """Contexts of 10 and 8 grow in 22 blocks; a third request waits for memory."""
    s = Stepper(limits(kv_blocks=22))
    s.add((0, 10, 9), (0, 8, 9))
    s.step()
    s.step()
    s.add((0, 3, 1))
    s.step()
    plan = s.step()
    assert plan is not None
    assert (plan.decode_count, plan.max_repeat, s.engine.preemptions) == (1, 1, 1)
    assert s.requests[1].preemptions == 1
    assert chunks(plan) == []
    assert s.engine.blocked == KV
    assert list(s.engine.waiting) == [1, 2], "in front of the arrival"
    assert s.requests[1].prefill_tokens == 11, "prompt and the three tokens that came out"
    assert s.requests[1].recomputed_tokens == 10


def test_a_half_done_prompt_at_the_tail_is_the_first_victim() -> None:
    s = Stepper(limits(kv_blocks=14, max_num_batched_tokens=6, reserve_full_prompt=False))
    s.add((0, 5, 6), (0, 12, 1))
    s.step()  # 5 and 1 of the second prompt
    s.step()  # 1 and 5 more: 6 + 6 blocks
    plan = s.step()
    assert plan is not None
    assert (plan.decode_count, chunks(plan)) == (1, []), "the chunk finds no block, so the prompt goes back"
    assert s.requests[1].recomputed_tokens == 6
    assert s.requests[1].computed == 0
    assert set(s.admissions()) == {1}


def test_a_request_never_preempts_an_older_one() -> None:
    s = Stepper(limits(kv_blocks=20))
    s.add((0, 6, 12), (0, 6, 9), (0, 6, 9))
    admissions = s.admissions()
    assert s.requests[0].preemptions == 0
    assert s.requests[1].preemptions <= s.requests[2].preemptions
    assert admissions[:3] == [0, 1, 2]


def test_what_a_preempted_request_emitted_is_not_emitted_again() -> None:
    s = Stepper(limits(kv_blocks=20))
    s.add((0, 6, 12), (0, 6, 9), (0, 6, 9))
    residence, decodes = {}, s.engine.decodes
    for _ in range(100):
        plan = s.engine.form_step(s.now_s)
        residence |= {r: (decodes.first_step(r), decodes.last_step(r)) for r in decodes.members}
        s.now_s += 1.0
        s.engine.commit(1 if plan else 0, s.now_s)
    assert not s.engine.running and not s.engine.waiting.size
    for request in s.requests:
        first, last = residence[request.index]
        assert request.emitted + last - first + 1 == request.output_tokens
        assert request.prefill_tokens == request.prompt_tokens + request.emitted


def test_preemption_gives_the_slot_back() -> None:
    """Request 1 holds the only slot; when it is preempted, nobody does."""
    s = Stepper(limits(max_loras=1, kv_blocks=21))
    s.add((0, 10, 9), (2, 8, 3))
    for _ in range(3):
        s.step()
    assert s.requests[1].preemptions == 1
    assert not s.engine.slots.active
    assert s.engine.slots.tiers is not None and s.engine.slots.tiers.slots.uses(2) == 0


def test_the_request_preempted_last_is_the_first_to_come_back() -> None:
    """Request 2 finds no slot, so the others are behind it. Request 3 is preempted, and does not fit while 1 grows."""
    s = Stepper(limits(max_num_seqs=3, kv_blocks=26, max_loras=1))
    s.add((1, 5, 50), (0, 5, 50), (2, 5, 1), (0, 10, 50))
    while not s.engine.preemptions:
        s.step()
    assert list(s.engine.waiting) == [2, 3]
    while s.engine.preemptions < 2:
        s.step()
    assert list(s.engine.waiting) == [2, 1, 3]


# --- how long a plan holds ----------------------------------------------------------------------------------------


def test_a_plan_holds_until_the_first_one_finishes() -> None:
    s = Stepper(limits())
    s.add((0, 5, 7), (0, 5, 20))
    s.step()
    plan = s.step()
    assert plan is not None and plan.max_repeat == 6


def test_a_plan_holds_until_memory_is_short() -> None:
    s = Stepper(limits(kv_blocks=25))
    s.add((0, 5, 16), (0, 5, 16))
    s.step()
    plan = s.step()  # 12 blocks; 13 are free, which two requests use up in 6 steps
    assert plan is not None and plan.max_repeat == 7
    s = Stepper(limits(kv_blocks=8, block_size=16))
    s.add((0, 10, 90), (0, 20, 90))
    s.step()
    plan = s.step()  # 5 free blocks for steps 7, 13, 23, 29 and 39, none for step 45
    assert plan is not None and plan.max_repeat == 44


def test_a_leaver_ends_the_plan_when_somebody_waits_for_its_place() -> None:
    s = Stepper(limits(max_num_seqs=2, async_scheduling=True))
    s.add((0, 5, 2), (0, 5, 20), (0, 5, 2))
    s.step()
    s.step()
    plan = s.step()
    assert plan is not None and (plan.decode_count, plan.max_repeat) == (1, 1)
    assert chunks(s.step()) == [(2, 0, 5)]


def test_running_a_plan_many_times_is_running_it_once_and_again() -> None:
    one, other = Stepper(limits(kv_blocks=60, block_size=4)), Stepper(limits(kv_blocks=60, block_size=4))
    for s in (one, other):
        s.add((0, 5, 30), (1, 9, 30), (0, 3, 30))
        s.step()
    plan = one.step(29)
    for _ in range(29):
        repeated = other.step()
    assert plan is not None and plan.max_repeat == 29
    assert repeated is not None and repeated.decode_context_tokens == plan.decode_context_tokens + 28 * 3
    assert (one.engine.step, one.engine.kv.free) == (other.engine.step, other.engine.kv.free) == (29, 60)
    assert one.finished == other.finished == [0, 1, 2]


# --- rejection and versions ---------------------------------------------------------------------------------------


def test_fits_counts_every_token_but_the_last() -> None:
    s = Stepper(limits(kv_blocks=10, block_size=16))

    def fits(prompt: int, output: int) -> bool:
        return s.engine.fits(append(s.requests, Request(0, 0.0, 0, 0, prompt, output)))

    assert fits(160, 1)
    assert fits(100, 61)
    assert not fits(100, 62)


def engine_of(version: str) -> Stepper:
    scenario = scenario_from_dict(
        {
            "model": "llama-3.1-8b", "gpu": "h200-141gb", "calibration": "nvidia-h200",
            "engine": {
                "version": version, "max_loras": 1, "max_num_seqs": 8, "max_num_batched_tokens": 256,
                "max_model_len": 256, "num_gpu_blocks_override": 17, "async_scheduling": False,
                "enable_prefix_caching": False,
            },
            "adapters": {"count": 3, "ranks": 8},
            "workload": {
                "arrivals": {"kind": "poisson", "rate_rps": 9}, "duration_s": 9,
                "prompt_tokens": {"kind": "fixed", "value": 8}, "output_tokens": {"kind": "fixed", "value": 8},
            },
        }
    )  # fmt: skip
    s = Stepper(limits())
    (replica,) = make_replicas(build_inputs(scenario), s.requests, coalesce=True)
    s.engine = replica.engine
    return s


def queue_after_a_preemption(version: str) -> list[int]:
    """16 blocks of 16 tokens. Request 2 is skipped for its adapter, then request 1 is preempted."""
    s = engine_of(version)
    s.add((1, 120, 60), (1, 100, 60), (2, 8, 1))
    while not s.engine.preemptions:
        s.step()
    return list(s.engine.waiting)


def test_a_preempted_request_queues_behind_the_skipped_ones() -> None:
    assert queue_after_a_preemption("0.20") == [2, 1]


def test_in_0_8_5_it_goes_in_front_of_them() -> None:
    assert queue_after_a_preemption("0.8.5") == [1, 2]
