"""SGLang's rules, one by one: plans formed by hand."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1]))

from support.latency_cases import decodes
from support.stepping import chunks
from support.wired import LAYERS, assert_no_stages, kernels_of, lora_exchange_s, wired, work

from simlora.engines.base import KV, SEQS, SLOTS
from simlora.engines.overlap_loading import OverlapLoading
from simlora.engines.request import Request
from simlora.engines.sglang.budget import TokenRatio
from simlora.engines.sglang.drainer import Drainer
from simlora.engines.sglang.engine import SglangEngine, SglangLimits
from simlora.engines.sglang.slots import SlotPool
from simlora.latency.step import StepPlan
from simlora.memory.copies import CopyEngine, Stage


class Server:
    """A scheduler at times 0, 1, 2, ...; each plan is committed before the next."""

    def __init__(
        self, ratio: TokenRatio | None = None, policy: str = "lru", host: int | None = None, **options: Any
    ) -> None:
        """options: limits, and drain_s or copy_s."""
        drain_s, copy_s = options.pop("drain_s", None), options.pop("copy_s", None)
        values = {
            "max_running_requests": 8, "chunked_prefill_size": 100, "max_prefill_tokens": 1000, "kv_tokens": 10_000,
            "max_loras_per_batch": 4,
        } | options  # fmt: skip
        limits = SglangLimits(**values)
        slots = limits.max_loras_per_batch
        self.pool = SlotPool(slots, limits.pinned, policy, host) if slots else None
        loader = None
        if copy_s is not None:
            copies = CopyEngine({"host": 1.0})
            loader = OverlapLoading(copies, lambda rank, tier: [Stage("host", copy_s)])
        drainer = Drainer(slots, drain_s) if drain_s is not None else None
        self.engine = SglangEngine(limits, ratio or TokenRatio.of(1.0), self.pool, drainer, loader)
        self.now_s, self.requests = 0.0, []

    def add(self, *rows: Sequence[int]) -> list[bool]:
        """Requests of (adapter, prompt, output); what enqueue said."""
        could = []
        for adapter, prompt, output in rows:
            request = Request(len(self.requests), self.now_s, adapter, 8 if adapter else 0, prompt, output)
            self.requests.append(request)
            could.append(self.engine.enqueue(request, self.now_s))
        return could

    def step(self, steps: int = 1) -> StepPlan | None:
        plan = self.engine.form_step(self.now_s)
        assert list(self.engine.violations()) == []
        self.now_s += steps
        first, finished = self.engine.commit(steps if plan else 0, self.now_s)
        self.first, self.finished = [r.index for r in first], [r.index for r in finished]
        return plan

    def prompts(self) -> list[int]:
        """Requests whose prompts are in the next step."""
        return [request for request, _, _ in chunks(self.step())]

    def loads(self) -> list[tuple[int, str]]:
        plan = self.step()
        assert plan is not None
        return [(adapter, tier) for adapter, _, tier in plan.loads]


def test_prompts_go_first_and_decodes_stand_still_meanwhile() -> None:
    server = Server()
    server.add((0, 10, 5))
    server.step()
    server.add((0, 20, 5))
    plan = server.step()
    assert plan is not None and chunks(plan) == [(1, 0, 20)] and plan.decode_count == 0
    plan = server.step()
    assert plan is not None and not plan.prefills and plan.decode_count == 2
    assert plan.decode_context_tokens == 10 + 20


def test_first_tokens_come_out_of_the_prefill() -> None:
    server = Server()
    server.add((0, 10, 1), (0, 10, 2))
    server.step()
    assert (server.first, server.finished) == ([0, 1], [0])


def test_several_prompts_share_a_prefill_and_one_of_them_is_cut() -> None:
    """The rest of it goes first in the next prefill."""
    server = Server()
    server.add((0, 60, 2), (0, 90, 2), (0, 30, 2))
    assert chunks(server.step()) == [(0, 0, 60), (1, 0, 40)]
    assert chunks(server.step()) == [(1, 40, 50), (2, 0, 30)]
    assert server.engine.partial is None


def test_a_prompt_of_several_chunks_keeps_all_others_waiting() -> None:
    server = Server()
    server.add((0, 250, 2), (0, 10, 2))
    assert [chunks(server.step()) for _ in range(3)] == [[(0, 0, 100)], [(0, 100, 100)], [(0, 200, 50), (1, 0, 10)]]


def test_max_prefill_tokens_bind_but_never_the_first_prompt() -> None:
    server = Server(max_prefill_tokens=30)
    server.add((0, 50, 2), (0, 20, 2), (0, 9, 2), (0, 5, 2))
    assert [server.prompts() for _ in range(2)] == [[0], [1, 2]]


def test_a_full_batch_is_looked_at_again_one_decode_step_after_somebody_is_done() -> None:
    server = Server(max_running_requests=2)
    server.add((0, 5, 2), (0, 5, 6), (0, 5, 2))
    assert server.prompts() == [0, 1]
    assert server.prompts() == [] and server.finished == [0]
    assert server.engine.waiting_by_reason()[SEQS] == 1
    assert server.prompts() == []  # request 0 leaves the batch now
    assert server.prompts() == [2]


def test_arrivals_cut_no_run_of_a_full_batch() -> None:
    server = Server(max_running_requests=1)
    server.add((0, 5, 50))
    server.step()
    assert server.add((0, 5, 2)) == [True]
    plan = server.step()
    assert plan is not None and plan.max_repeat > 1
    assert server.add((0, 5, 2)) == [False] and server.engine.arrival_reason == SEQS


# --- adapters


def test_no_adapter_takes_a_slot_too() -> None:
    server = Server(max_loras_per_batch=2)
    server.add((1, 5, 9), (0, 5, 9), (2, 5, 9), (1, 5, 9))
    assert server.prompts() == [0, 1, 3]
    assert server.engine.waiting_by_reason()[SLOTS] == 1
    server = Server(max_loras_per_batch=2)
    server.add((1, 5, 9), (2, 5, 9), (0, 5, 9))
    assert server.prompts() == [0, 1]


def test_a_request_without_a_slot_is_skipped_and_those_behind_it_go_on() -> None:
    server = Server(max_loras_per_batch=1)
    server.add((1, 5, 3), (2, 5, 3), (1, 5, 3))
    assert server.prompts() == [0, 2]
    assert server.add((3, 5, 3), (1, 5, 3)) == [True, True]  # a prefill is a run of one step
    assert server.prompts() == [4]
    server.step()
    assert server.add((3, 5, 3)) == [False] and server.engine.arrival_reason == SLOTS


def test_pinned_adapters_keep_their_slots() -> None:
    """3 slots, one pinned and idle: two others run, though only they are in the batch."""
    server = Server(max_loras_per_batch=3, pinned=frozenset({1}))
    server.add((2, 5, 9), (3, 5, 9), (4, 5, 9), (0, 5, 9), (1, 5, 9))
    assert server.prompts() == [0, 1, 4]


def test_the_base_slot_is_the_last_to_go() -> None:
    pool = SlotPool(2)
    pool.prepare({0}, ())
    pool.prepare({1}, ())
    pool.prepare({2}, ())
    assert 0 in pool and 1 not in pool and pool.evictions == 1
    pool.prepare({2, 3}, ())
    assert 0 not in pool and pool.evictions == 1
    pool.prepare({0}, ())
    assert 0 in pool and pool.evictions == 2


@pytest.mark.parametrize("policy, victim", [("lru", 2), ("fifo", 1)])
def test_eviction_policies(policy: str, victim: int) -> None:
    pool = SlotPool(3, policy=policy)
    for adapters in ({1}, {2}, {1}, {3}):
        pool.prepare(adapters, ())
    assert victim not in pool and len({1, 2} & set(pool)) == 1


def test_a_load_happens_in_the_step_that_needs_it() -> None:
    server = Server()
    server.add((1, 5, 2), (1, 5, 2), (0, 5, 2))
    assert server.loads() == [(1, "host")]
    assert server.loads() == []
    assert server.engine.counters().tiers == (1, 1, 0, 0) and server.engine.counters().loads_by_rank == {8: 1}
    assert [r.load_tier for r in server.requests] == [1, 0, 0]


def test_a_prefill_can_take_the_slot_of_an_adapter_that_decodes() -> None:
    """Of two slots the base model has one, the last to go: the prefill of adapter 2 takes that of adapter 1."""
    server = Server(max_loras_per_batch=2)
    server.add((1, 5, 9))
    assert server.loads() == [(1, "host")]
    server.add((2, 5, 9))
    assert server.loads() == [(2, "host")]
    assert server.loads() == [(1, "host")]  # base was resident, and is evicted only now
    assert server.loads() == []


def test_host_memory_forgets_what_was_asked_for_longest_ago() -> None:
    server = Server(max_loras_per_batch=1, host=2)
    tiers = []
    for adapter in (1, 2, 1, 3, 1, 2):
        server.add((adapter, 5, 1))
        tiers += server.loads()
    assert tiers == [(1, "disk"), (2, "disk"), (1, "host"), (3, "disk"), (1, "host"), (2, "disk")]


# --- overlapped loading


def test_a_request_is_held_back_while_its_adapter_loads_and_others_go_on() -> None:
    server = Server(copy_s=2.5)
    server.add((0, 5, 9), (1, 5, 2))
    plan = server.step()
    assert plan is not None and plan.loads == () and [c[0] for c in chunks(plan)] == [0]
    assert plan.copying and server.engine.wake_s == 2.5
    assert [server.prompts() for _ in range(3)] == [[], [], [1]]
    assert server.requests[1].load_tier == 1 and server.engine.counters().loads_by_rank == {8: 1}


def test_a_load_holds_its_slot() -> None:
    server = Server(max_loras_per_batch=2, copy_s=1.5)
    server.add((1, 5, 9), (2, 5, 9), (3, 5, 9))
    assert server.step() is None and server.engine.wake_s == 3.0  # two share the link, the third has no slot
    server.now_s = 3.0
    assert server.prompts() == [0, 1]
    assert server.engine.counters().loads_by_rank == {8: 2}


def test_without_work_the_server_sleeps_until_the_copy_is_there() -> None:
    server = Server(copy_s=4.0)
    server.add((1, 5, 1))
    assert server.step() is None and server.engine.wake_s == 4.0
    server.now_s = 4.0
    assert server.prompts() == [0]


# --- memory


def test_admission_counts_the_whole_output_of_the_new_and_a_share_of_the_rest_of_the_running() -> None:
    ratio = TokenRatio(0.5, 0.5, 0.0)
    server = Server(ratio, kv_tokens=100)
    server.add((0, 10, 41))
    server.step()
    # free 90, expected 0.5 x 40 = 20: what is asked must be below 70 with one token in reserve
    server.add((0, 20, 49))
    assert server.prompts() == [] and server.engine.full and server.engine.waiting_by_reason()[KV] == 1
    server = Server(ratio, kv_tokens=100)
    server.add((0, 10, 41))
    server.step()
    server.add((0, 20, 48))
    assert server.prompts() == [1]


def test_the_ratio_falls_linearly_with_decode_steps_down_to_its_floor() -> None:
    ratio = TokenRatio.of(1.0)
    assert ratio.value == 0.7
    ratio.steps = 300
    assert ratio.value == pytest.approx((0.7 + 0.7 * 0.14) / 2)
    ratio.steps = 600
    assert ratio.value == pytest.approx(0.7 * 0.14)
    ratio.steps = 10_000
    assert ratio.value == 0.7 * 0.14
    assert TokenRatio.of(2.0).value == 1.0


def test_a_retraction_resets_the_ratio_to_what_the_batch_needs() -> None:
    ratio = TokenRatio.of(1.0)
    ratio.steps = 500
    ratio.retracted([(30, 100), (10, 99)])
    assert ratio.value == (30 + 10 + 2 * 20) / 200
    ratio.steps = 100
    assert ratio.value < 0.4


def test_an_idle_server_starts_from_the_initial_ratio_again() -> None:
    server = Server()
    server.add((0, 5, 9))
    for _ in range(9):
        server.step()
    assert server.engine.ratio.value < 0.7
    assert server.step() is None and server.engine.ratio.value == 0.7


def first_victim(*rows: Sequence[int], kv_tokens: int) -> int:
    """Requests start one after the other, the first of them 5 tokens ahead."""
    server = Server(TokenRatio(0.0, 0.0, 0.0), kv_tokens=kv_tokens)
    server.add(rows[0])
    server.step()
    server.step(5)
    for row in rows[1:]:
        server.add(row)
        server.step()
    while not server.engine.preempted:
        server.step()
    return server.engine.preempted[0].index


def test_the_fewest_generated_tokens_go_first_then_the_longest_prompt_then_the_last() -> None:
    assert first_victim((0, 20, 60), (0, 5, 50), kv_tokens=100) == 1
    assert first_victim((0, 5, 60), (0, 6, 50), (0, 9, 50), (0, 6, 50), kv_tokens=100) == 2
    assert first_victim((0, 5, 60), (0, 6, 50), (0, 6, 50), (0, 6, 50), kv_tokens=100) == 3


def test_a_retracted_request_queues_up_behind_everybody_and_computes_prompt_and_output_again() -> None:
    server = Server(TokenRatio(0.0, 0.0, 0.0), kv_tokens=45, max_running_requests=2)
    server.add((0, 5, 30))
    server.step()
    server.add((0, 6, 31), (0, 4, 2))
    while not server.engine.preempted:
        server.step()
    victim = server.engine.preempted[0]
    assert [r.index for r in server.engine.queue] == [2, victim.index]
    assert victim.prefill_tokens == victim.prompt_tokens + victim.emitted and victim.preemptions == 1
    assert victim.recomputed_tokens == victim.prefill_tokens - 1
    while server.engine.running or server.engine.queue.size:
        server.step()
    assert server.engine.used_blocks() == 0


def test_the_last_request_is_aborted_when_even_that_does_not_fit() -> None:
    """Only 4096 tokens of its output were counted at admission."""
    server = Server(kv_tokens=4200)
    request = Request(0, 0.0, 0, 0, 10, 5000)
    assert not server.engine.fits(request)
    server.requests.append(request)
    server.engine.enqueue(request, 0.0)
    server.step()
    plan = server.engine.form_step(1.0)
    assert plan is not None and plan.max_repeat == 4190
    server.engine.commit(4190, 2.0)
    assert server.engine.form_step(3.0) is None
    assert server.engine.aborted == [request] and server.engine.used_blocks() == 0
    assert server.engine.counters().aborted == 1


def test_decode_runs_end_where_memory_does() -> None:
    server = Server(TokenRatio(0.0, 0.0, 0.0), kv_tokens=60)
    server.add((0, 10, 48))
    server.step()
    server.add((0, 10, 38))
    server.step()
    plan = server.step()
    assert plan is not None and plan.max_repeat == (60 - 20) // 2


# --- mixed chunks


def test_mixed_chunks_take_decodes_along() -> None:
    server = Server(enable_mixed_chunk=True, chunked_prefill_size=20)
    server.add((0, 10, 9))
    server.step()
    server.add((0, 30, 9))
    plan = server.step()
    assert plan is not None and plan.decode_count == 1 and chunks(plan) == [(1, 0, 19)]  # decodes come off the chunk
    plan = server.step()
    assert plan is not None and plan.decode_count == 1 and chunks(plan) == [(1, 19, 11)]


# --- draining


def test_the_running_adapter_with_the_least_to_come_is_drained_for_one_that_waited_too_long() -> None:
    server = Server(max_loras_per_batch=2, drain_s=3.0)
    server.add((1, 5, 40), (2, 5, 20), (3, 5, 5))
    server.step()
    assert server.engine.drainer is not None and server.engine.drainer.draining == {}
    for _ in range(4):
        server.step()
    assert server.now_s == 5.0 and server.engine.drainer.draining == {2: 3}


def test_the_drain_timer_ends_a_coalesced_run() -> None:
    server = Server(max_loras_per_batch=1, drain_s=3.0)
    server.add((1, 5, 40), (2, 5, 5))
    server.step()
    plan = server.engine.form_step(1.0)
    assert plan is not None and plan.max_repeat > 1
    assert 3.0 < server.engine.wake_s < 3.0 + 1e-12


def test_a_draining_adapter_takes_only_what_ends_soon_enough() -> None:
    drainer = Drainer(1, 3.0)
    assert drainer.update({2: 0.0}, {1: 10}, 3.5)
    assert drainer.draining == {1: 2}
    assert drainer.accepts(Request(0, 0.0, 1, 8, 5, 12)) and not drainer.accepts(Request(0, 0.0, 1, 8, 5, 13))
    assert drainer.accepts(Request(0, 0.0, 2, 8, 5, 1000))


def test_a_drained_adapter_is_cleared_when_none_of_its_requests_runs() -> None:
    drainer = Drainer(1, 3.0)
    drainer.update({2: 0.0}, {1: 10}, 3.5)
    assert drainer.update({2: 0.0}, {}, 4.0) and drainer.draining == {}


def test_nobody_is_drained_while_a_slot_is_free_or_nobody_waited_longer_than_the_threshold() -> None:
    drainer = Drainer(2, 3.0)
    assert not drainer.update({2: 0.0}, {1: 10}, 3.5)
    assert not drainer.update({2: 1.0}, {1: 10, 3: 4}, 4.0)
    assert drainer.update({2: 1.0}, {1: 10, 3: 4}, 4.5) and drainer.draining == {3: 2}


def test_without_draining_a_popular_adapter_starves_the_others() -> None:
    def wait_of_the_other(drain_s: float | None) -> int:
        server = Server(max_loras_per_batch=1, drain_s=drain_s)
        server.add((1, 5, 6), (2, 5, 2))
        for step in range(100):
            if step % 4 == 0:
                server.add((1, 5, 6))
            if 1 in server.prompts():
                return step
        return 100

    assert wait_of_the_other(None) == 100
    assert wait_of_the_other(5.0) < 20


# --- kernels and parallelism


def test_chunked_sgmv_is_in_every_graph() -> None:
    """Prompts and decodes of any ranks take it, and steps without adapters launch it, too."""
    latency = wired("sglang")
    assert [kernels_of(latency, prompts, work(40, 4))[0] for prompts in (1, 0)] == ["csgmv", "csgmv"]
    assert 0.0 < latency.price(decodes(64)).lora_s < latency.price(decodes(64, 4)).lora_s
    assert wired("sglang", enable_lora=False).price(decodes(64)).lora_s == 0.0


def test_four_gpus_reduce_after_each_row_parallel_shrink_and_no_stages() -> None:
    """Two small all-reduces a layer, of o_proj's and down_proj's intermediate results."""
    latency, plan = wired("sglang", tensor_parallel_size=4), decodes(32, 4)
    reduce_s = latency.collectives.reduce_s(32 * 16 * 2)
    assert lora_exchange_s(latency, plan) == pytest.approx(LAYERS * 2 * reduce_s)
    assert_no_stages("sglang")
