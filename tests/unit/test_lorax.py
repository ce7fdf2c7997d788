"""LoRAX's rules by name, one at a time."""

from __future__ import annotations

import sys
from dataclasses import replace
from math import nextafter
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1]))

from support.latency_cases import decodes
from support.lorax_cases import SHARES
from support.wired import LAYERS, assert_no_stages, kernels_of, lora_exchange_s, work
from support.wired import wired as latency_of

from simlora.engines.base import KV, SLOTS, TOKENS
from simlora.engines.lorax.batching import LoraxLimits
from simlora.engines.lorax.build import make_engine
from simlora.engines.lorax.engine import LoraxEngine
from simlora.engines.lorax.loader import Loader, LoaderTimes
from simlora.engines.lorax.profile import padded_rank
from simlora.engines.lorax.ranks import LazyGraphs
from simlora.engines.request import Request
from simlora.latency.step import AdapterMix, StepPlan
from simlora.scenario.load import scenario_from_dict
from simlora.sim.build import build_inputs

LIMITS = LoraxLimits(kv_blocks=1000, block_size=1, max_batch_prefill_tokens=100)


class Driver:
    """An engine planned by hand. A step takes 1 s and what the loader adds to it."""

    def __init__(self, limits: LoraxLimits = LIMITS, graphs: LazyGraphs | None = None, **times: Any) -> None:
        settings: dict[str, Any] = {
            "load_s": lambda rank, tier: {"host": 0.25, "disk": 1.0}[tier],
            "cost": lambda adapter, rank: SHARES[rank],
            "offload_s": 0.125,
        }
        loader = Loader(LoaderTimes(**settings | times))
        self.engine = LoraxEngine(limits, loader, padded_rank, graphs)
        self.now_s = 0.0
        self.requests: list[Request] = []

    def add(self, adapter: int = 0, prompt: int = 10, output: int = 10, rank: int = 8) -> bool:
        request = Request(len(self.requests), self.now_s, adapter, rank if adapter else 0, prompt, output)
        self.requests.append(request)
        if not self.engine.fits(request):
            request.rejected = True
            return False
        return self.engine.enqueue(request, self.now_s)

    def plan(self) -> StepPlan | None:
        """The next plan; time passes until it is over, or until the engine wants to be asked again."""
        engine = self.engine
        plan = engine.form_step(self.now_s)
        assert list(engine.violations()) == []
        if plan is None:
            self.now_s = engine.wake_s if engine.wake_s < float("inf") else self.now_s
            engine.commit(0, self.now_s)
            return None
        self.now_s += 1.0 + plan.extra_s + sum(engine.loader.times.load_s(rank, tier) for _, rank, tier in plan.loads)
        engine.commit(1, self.now_s)
        return plan

    def until_plan(self) -> StepPlan:
        for _ in range(100):
            plan = self.plan()
            if plan is not None:
                return plan
        raise AssertionError("nothing to do")

    def decodes(self, steps: int) -> None:
        """That many plans, all of them decodes without prompts."""
        for _ in range(steps):
            plan = self.plan()
            assert plan is not None and not plan.prefills


def prompts(plan: StepPlan | None) -> list[int]:
    return [] if plan is None else [prefill.request for prefill in plan.prefills]


# --- the batching loop ------------------------------------------------------------------------------------------------


def test_prompts_stand_alone_and_decodes_wait() -> None:
    driver = Driver()
    driver.add(output=50)
    first = driver.until_plan()
    assert (prompts(first), first.decode_count) == ([0], 0)
    driver.decodes(1)
    driver.add()
    driver.add()
    second = driver.plan()
    assert second is not None
    assert (prompts(second), second.decode_count) == ([1, 2], 0)
    third = driver.plan()
    assert third is not None and third.decode_count == 3


def test_too_few_wait_until_the_timer_fires() -> None:
    """Four run, so that floor(4 x 1.2) = 4 must wait; 19 decodes after the prompts, one is enough."""
    driver = Driver()
    for _ in range(4):
        driver.add(output=100)
    assert prompts(driver.until_plan()) == [0, 1, 2, 3]
    driver.decodes(1)
    driver.add(output=100)
    driver.decodes(18)
    assert driver.engine.waiting_by_reason() == (0, 0, 0, 1)
    assert prompts(driver.plan()) == [4]
    driver.decodes(1)
    driver.add(output=100)
    driver.decodes(18)
    assert prompts(driver.plan()) == [5]  # the counter began anew


def test_enough_of_them_need_no_timer() -> None:
    driver = Driver()
    for _ in range(4):
        driver.add(output=100)
    driver.until_plan()
    driver.decodes(2)
    assert [driver.add(output=100) for _ in range(4)] == [True, False, False, True]
    assert prompts(driver.plan()) == [4, 5, 6, 7]


def test_all_queued_count_for_the_first_check_but_only_the_batch_for_the_second() -> None:
    """Four wait, one of them for an adapter that is not there: three do not make a batch of four, and go back."""
    driver = Driver()
    for _ in range(4):
        driver.add(output=100)
    driver.until_plan()
    driver.decodes(2)
    for adapter in (0, 0, 7, 0):
        driver.add(adapter, output=100)
    driver.decodes(1)
    reasons = driver.engine.waiting_by_reason()
    assert (reasons[SLOTS], reasons[TOKENS]) == (1, 3)
    assert [r.index for r in driver.engine.queues.known[0].requests] == [4, 5, 7]


@pytest.mark.parametrize("eager", [True, False])
def test_eager_prefill_goes_on_until_no_batch_can_be_formed(eager: bool) -> None:
    driver = Driver(replace(LIMITS, max_batch_prefill_tokens=20, eager_prefill=eager, waiting_served_ratio=1.0))
    driver.add(output=50)
    driver.until_plan()
    driver.decodes(1)
    for _ in range(5):
        driver.add(output=50)
    assert prompts(driver.plan()) == [1, 2]
    assert prompts(driver.plan()) == ([3, 4] if eager else [])
    assert driver.engine.waiting_by_reason()[TOKENS] == (1 if eager else 3)


def test_prefill_tokens_stop_the_queue() -> None:
    driver = Driver()
    for prompt in (60, 50, 1):
        driver.add(prompt=prompt, output=30)
    assert prompts(driver.until_plan()) == [0]  # formed at the first request's arrival
    assert prompts(driver.plan()) == [1, 2]


def test_chunked_prefill_mixes_and_cuts() -> None:
    driver = Driver(replace(LIMITS, max_batch_prefill_tokens=16, chunked_prefill=True))
    driver.add(prompt=4, output=20)
    driver.until_plan()
    driver.add(prompt=40, output=20)
    sizes = []
    for _ in range(3):
        plan = driver.plan()
        assert plan is not None
        sizes.append((plan.decode_count, [new for _, _, new in plan.prefills]))
    assert sizes == [(1, [15]), (1, [15]), (1, [10])]


def test_blocks_are_reserved_for_all_that_is_asked() -> None:
    """25 blocks; each request takes 10 + 10 - 1 tokens from admission until its end; those behind wait, fit or not."""
    driver = Driver(replace(LIMITS, kv_blocks=25))
    for output in (10, 10, 1):
        driver.add(output=output)
    assert prompts(driver.until_plan()) == [0]
    assert driver.engine.used_blocks() == 19
    driver.decodes(1)
    assert driver.engine.waiting_by_reason() == (0, 2, 0, 0)
    assert driver.engine.batching.blocked == KV
    driver.decodes(8)
    assert driver.engine.used_blocks() == 0
    assert prompts(driver.plan()) == [1]


def test_an_arrival_behind_the_one_that_finds_no_blocks_changes_nothing() -> None:
    driver = Driver(replace(LIMITS, kv_blocks=25))
    driver.add(output=15)
    driver.until_plan()
    assert driver.add(output=10)
    driver.decodes(1)
    assert not driver.add(output=1)


def test_requests_beyond_the_limit_are_refused() -> None:
    driver = Driver(replace(LIMITS, max_concurrent_requests=2))
    for _ in range(3):
        driver.add()
    assert [r.rejected for r in driver.requests] == [False, False, True]


def test_an_adapter_above_the_whole_budget_is_refused() -> None:
    driver = Driver(cost=lambda adapter, rank: 1.5 if adapter == 2 else 1.0)
    for adapter in (1, 2):
        driver.add(adapter)
    assert [r.rejected for r in driver.requests] == [False, True]


# --- adapters ---------------------------------------------------------------------------------------------------------


def test_oldest_head_first_whatever_its_adapter() -> None:
    driver = Driver(load_s=lambda rank, tier: 0.0)
    for adapter in (3, 1, 3, 2):
        driver.add(adapter, output=40)
    while driver.engine.queues.servable_waiting < 4:
        driver.engine.shard.work(0.0)
        driver.engine.shard.settle(0.0)
        moves = driver.engine.queues.exchange(0.0, lambda adapter: False)
        for queue in moves.load:
            driver.engine.loader.move(1, queue)
    assert prompts(driver.until_plan()) == [0, 1, 2, 3]


def test_adapters_within_their_turn_come_first() -> None:
    queues = LoraxEngine(LIMITS, Loader(LoaderTimes(lambda r, t: 0.0, lambda a, r: 0.1)), padded_rank).queues
    for index, adapter in enumerate((1, 2)):
        queue, _ = queues.append(Request(index, 0.0, adapter, 8, 10, 10))
        queue.units = 0
        queues.exchange(1.5 * index, lambda adapter: True)
        queues.set_ready(queue, True)
    assert [queues.choose(now_s).adapter for now_s in (1.9, 2.0, 3.4, 3.5)] == [1, 2, 2, 1]  # type: ignore[union-attr]


def test_download_then_load_each_holding_the_step() -> None:
    """A batch runs: the download goes before one step, the load before the next, and then the request is admitted."""
    driver = Driver(download_s=lambda rank: 3.0)
    driver.add(output=50)
    driver.until_plan()
    driver.decodes(2)
    driver.add(1)
    held = []
    for _ in range(2):
        plan = driver.plan()
        assert plan is not None and not plan.prefills and plan.max_repeat == 1
        held.append((plan.loads, plan.extra_s))
    assert held == [((), 3.0), (((1, 8, "disk"),), 0.0)]
    assert prompts(driver.plan()) == [1]
    assert driver.requests[1].load_tier == 3
    assert driver.engine.counters().tiers == (0, 0, 0, 1)


def test_without_a_batch_operations_follow_each_other() -> None:
    driver = Driver(download_s=lambda rank: 3.0)
    driver.add(1)
    assert driver.plan() is None and driver.now_s == 3.0
    assert driver.plan() is None and driver.now_s == 4.0
    assert prompts(driver.plan()) == [0]
    assert driver.requests[0].load_s == 4.0


def test_prompts_wait_for_the_operation_in_progress() -> None:
    """Adapters 3 and 4 leave for adapter 1, one when it comes and one when it is downloaded; during its load a request
    of the base model, still active, gets its batch."""
    driver = Driver(replace(LIMITS, adapter_cycle_time_s=1000.0))
    for adapter in (3, 4, 0):
        driver.add(adapter, output=20)
    driver.until_plan()
    while driver.engine.running or driver.engine.waiting_count():
        driver.plan()
    driver.add(1)
    for _ in range(3):  # two offloads and the load
        assert driver.plan() is None
    end_s, driver.now_s = driver.now_s, driver.now_s - 0.5
    driver.add()
    plan = driver.plan()
    assert plan is not None
    assert (prompts(plan), plan.extra_s, driver.now_s) == ([4], 0.5, end_s + 1.0)


def test_idle_adapters_leave_only_for_pending_ones() -> None:
    """The budget holds both, and yet the idle one goes: one leaves for each that is pending."""
    driver = Driver()
    driver.add(1, output=1)
    driver.until_plan()
    for _ in range(3):
        driver.plan()
    assert 1 in driver.engine.queues.active
    driver.add(2, output=30)
    driver.until_plan()
    assert list(driver.engine.queues.active) == [2]
    assert driver.engine.counters().evictions == 1


def test_only_the_front_of_the_active_adapters_is_exchanged_after_its_turn() -> None:
    """Adapter 1 is in use and stays; adapter 2 behind it is as old, has no request running, and stays too."""
    limits = replace(LIMITS, max_active_adapters=2)
    queues = LoraxEngine(limits, Loader(LoaderTimes(lambda r, t: 0.0, lambda a, r: 0.1)), padded_rank).queues
    for index, adapter in enumerate((1, 2, 3)):
        queue, _ = queues.append(Request(index, 0.0, adapter, 8, 10, 10))
        queue.units = 0
    queues.exchange(0.0, lambda adapter: False)
    assert list(queues.active) == [1, 2]
    assert queues.exchange(9.0, {1}.__contains__) == ([], [])
    assert queues.exchange(2.0, lambda adapter: False) == ([], [])  # not longer than the turn
    moved = queues.exchange(2.25, lambda adapter: False)
    assert ([q.adapter for q in moved.offload], [q.adapter for q in moved.load]) == ([1], [3])
    assert [q.adapter for q in queues.pending] == [1]  # with its request


def test_the_end_of_a_turn_is_worth_a_look() -> None:
    """At 2.0 it still has its place (not longer than the turn), but others that are within theirs come first."""
    queues = LoraxEngine(LIMITS, Loader(LoaderTimes(lambda r, t: 0.0, lambda a, r: 0.1)), padded_rank).queues
    first, _ = queues.append(Request(0, 0.0, 1, 8, 10, 10))
    first.units = 0
    queues.exchange(0.0, lambda adapter: False)
    queues.set_ready(first, True)
    queues.append(Request(1, 0.0, 2, 8, 10, 10))
    assert queues.next_change_s(1.0, lambda adapter: False) == 2.0
    assert queues.next_change_s(2.0, lambda adapter: False) == nextafter(2.0, 3.0)
    assert queues.next_change_s(2.0, lambda adapter: True) == float("inf")


def test_the_front_of_pending_stops_those_behind_it() -> None:
    """Ranks 40, 40, 8: the second does not fit beside the first, and the small one waits behind it."""
    driver = Driver()
    for adapter, rank in ((1, 40), (2, 40), (3, 8)):
        driver.add(adapter, rank=rank, output=30)
    driver.until_plan()
    for _ in range(4):
        driver.plan()
    assert list(driver.engine.queues.active) == [1]
    assert [q.adapter for q in driver.engine.queues.pending] == [2, 3]
    assert driver.engine.waiting_by_reason()[SLOTS] == 2


def test_no_host_cache_unless_asked_for() -> None:
    for host_cache, tiers in ((False, ["disk", "disk"]), (True, ["disk", "host"])):
        driver = Driver(host_cache=host_cache)
        found: list[str] = []
        original = driver.engine.loader.times.load_s

        def note(rank: int, tier: str, found: list[str] = found, original: Any = original) -> float:
            found.append(tier)
            return float(original(rank, tier))

        driver.engine.loader.times = replace(driver.engine.loader.times, load_s=note)
        for adapter in (1, 2, 1):
            driver.add(adapter, output=1)
            while driver.engine.waiting_count() or driver.engine.running:
                driver.plan()
        assert [found[0], found[2]] == tiers


def test_preloaded_adapters_need_no_load() -> None:
    driver = Driver(resident=frozenset({0, 1}), cost=lambda adapter, rank: 0.0 if adapter < 2 else float("inf"))
    driver.add(1)
    driver.add(2)
    assert prompts(driver.plan()) == [0] and driver.now_s == 1.0
    assert driver.requests[0].load_tier == 0
    assert driver.requests[1].rejected


def test_turns_shorter_than_loads_serve_nobody() -> None:
    """An adapter's turn begins when it is activated: it is over before the load is, and the other's load begins."""
    driver = Driver(replace(LIMITS, adapter_cycle_time_s=0.5, max_active_adapters=1))
    driver.add(1)
    driver.add(2)
    for _ in range(200):
        assert driver.plan() is None
        if driver.engine.aborted:
            break
    assert [r.index for r in driver.engine.aborted] == [0, 1]
    assert driver.engine.counters().aborted == 2


# --- ranks and graphs -------------------------------------------------------------------------------------------------


def test_kernels_see_padded_ranks() -> None:
    driver = Driver(load_s=lambda rank, tier: 0.0, cost=lambda adapter, rank: 0.1)
    for adapter, rank in ((1, 4), (2, 20), (3, 32)):
        driver.add(adapter, rank=rank, output=80)
    for _ in range(60):
        plan = driver.plan()
        if plan is not None and plan.decode_count == 3:
            break
    assert plan is not None and plan.mix is not None
    mix = plan.mix
    assert (mix.rank_sum, mix.max_rank, mix.distinct_ranks, mix.rank_tokens) == (8 + 32 + 32, 32, 2, 72)
    assert plan.max_rank == 32 and driver.engine.rank_tokens == 4 + 20 + 32


def test_a_graph_is_captured_when_it_is_first_needed() -> None:
    graphs = LazyGraphs(lambda plan: plan.decode_count, lambda plan: 0.5)
    driver = Driver(graphs=graphs)
    driver.add(output=50)
    driver.until_plan()
    assert [p.extra_s for p in (driver.plan(), driver.plan()) if p] == [0.5, 0.0]
    driver.add(output=50)
    assert prompts(driver.plan()) == [1]
    assert [p.extra_s for p in (driver.plan(), driver.plan()) if p] == [0.5, 0.0]


# --- wiring -----------------------------------------------------------------------------------------------------------


def wired(engine: dict[str, Any] | None = None, **sections: Any) -> LoraxEngine:
    data = {
        "model": "llama-3.1-8b", "gpu": "h200-141gb", "adapters": {"count": 4, "ranks": 16},
        "engine": {"kind": "lorax", "max_model_len": 4096, **(engine or {})},
        "workload": {"arrivals": {"kind": "poisson", "rate_rps": 1}, "duration_s": 9},
    }  # fmt: skip
    return make_engine(build_inputs(scenario_from_dict({**data, **sections})))


def test_wiring_takes_the_settings() -> None:
    engine = wired({"max_batch_total_tokens": 32_000, "waiting_served_ratio": 0.3, "max_waiting_tokens": 7})
    limits = engine.limits
    assert (limits.kv_blocks, limits.block_size) == (32_000 // 16 - 1, 16)
    assert (limits.waiting_served_ratio, limits.max_waiting_tokens, limits.max_concurrent_requests) == (0.3, 7, 1024)
    assert limits.max_batch_prefill_tokens == 4096 - 1 + 50
    assert limits.adapter_cycle_time_s == 2.0 and limits.eager_prefill and not limits.chunked_prefill


def test_adapters_are_charged_by_file_bytes() -> None:
    """Rank 16 of all seven projections of Llama-3.1-8B is 83.9 MB; a tenth of 141 GB holds 178 of them, whatever they
    are padded to."""
    engine = wired()
    assert 1 / engine.loader.times.cost(1, 16) == pytest.approx(0.1 * 150.1e9 / 83.9e6, rel=0.05)
    assert engine.loader.times.cost(1, 9) == pytest.approx(engine.loader.times.cost(1, 16) * 9 / 16)
    assert engine.loader.times.cost(0, 0) == 0.0


def test_remote_adapters_are_downloaded_once() -> None:
    storage = {"remote": {"bandwidth_gib_s": 0.5, "latency_s": 0.25}}
    engine = wired(storage=storage)
    download_s = engine.loader.times.download_s
    assert download_s is not None
    assert download_s(16) == pytest.approx(0.25 + 83.9e6 / 2**29, rel=0.01)
    stored = wired(storage=storage, adapters={"count": 4, "ranks": 16, "preload": True})
    stored.enqueue(Request(0, 0.0, 1, 16, 10, 10), 0.0)
    assert stored.loader.start(0.0).seconds == 0.0
    assert wired().loader.times.download_s is None


def test_preloaded_ids_are_pinned() -> None:
    engine = wired({"preloaded_adapter_ids": [2]})
    assert engine.loader.times.resident == {0, 2}
    assert engine.fits(Request(0, 0.0, 2, 16, 10, 10)) and not engine.fits(Request(1, 0.0, 1, 16, 10, 10))


# --- kernels and parallelism ------------------------------------------------------------------------------------------


def test_prompts_take_sgmv_and_decodes_bgmv_once_for_each_rank() -> None:
    latency = latency_of("lorax")
    for prompts_in_step, name in ((2, "sgmv"), (0, "bgmv")):
        found, family = kernels_of(latency, prompts_in_step, work(8, 4))
        assert found == name
        assert family.launches(work(8, 4, distinct_ranks=3)) == 3 * family.launches(work(8, 4))


def test_four_gpus_reduce_for_each_projection_and_rank_and_no_stages() -> None:
    latency, plan = latency_of("lorax", tensor_parallel_size=4), decodes(32, 4)
    reduce_s = latency.collectives.reduce_s(32 * 16 * 2)
    assert lora_exchange_s(latency, plan) == pytest.approx(LAYERS * 7 * reduce_s)
    two_ranks = plan._replace(mix=AdapterMix(96, 32 * 24, 32, 2), max_rank=32)
    reduce_s = latency.collectives.reduce_s(16 * 24 * 2)
    assert lora_exchange_s(latency, two_ranks) == pytest.approx(LAYERS * 7 * 2 * reduce_s)
    assert 4 * latency.transfers.copy_bytes(16) == latency_of("lorax").transfers.copy_bytes(
        16
    )  # A and B are both split
    assert_no_stages("lorax")
