"""Punica's rules, one by one: on a GPU, and over several of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1]))

from support.engine_laws import assert_conserves
from support.fakes import FixedStep
from support.latency_cases import decodes
from support.stepping import chunks
from support.wired import LAYERS, assert_no_stages, kernels_of, wired, work

from simlora.cluster.actions import Migrate, Ticking
from simlora.cluster.punica import WHEN_ROOM_S, PunicaConsolidation, PunicaPlacement
from simlora.cluster.router import Hold, RoundRobin, Send
from simlora.engines.base import KV, SEQS, SLOTS
from simlora.engines.overlap_loading import OverlapLoading
from simlora.engines.punica.adapters import PunicaAdapters
from simlora.engines.punica.engine import PunicaEngine, PunicaLimits
from simlora.engines.request import Request, Requests
from simlora.engines.view import View
from simlora.errors import ConfigError
from simlora.latency.step import StepPlan
from simlora.memory.copies import CopyEngine, Stage
from simlora.memory.residents import ResidentSet
from simlora.scenario.load import scenario_from_dict
from simlora.sim.clock import Clock
from simlora.sim.replica import EngineReplica
from simlora.sim.simulation import Simulation


def make_engine(copy_s: float | None = 1.5, **options: Any) -> PunicaEngine:
    values = {"max_batch_size": 4, "kv_pages": 1000, "page_tokens": 16, "buffers": 4} | options
    limits = PunicaLimits(**values)
    copies = None
    if copy_s is not None:
        copies = OverlapLoading(CopyEngine({"host": 1.0}), lambda rank, tier: [Stage("host", 0.0, copy_s)])
    buffers = ResidentSet(limits.buffers)
    return PunicaEngine(limits, PunicaAdapters(buffers, copies))


class Gpu:
    """A scheduler at times 0, 1, 2, ...; each plan is committed before the next."""

    def __init__(self, **options: Any) -> None:
        self.engine = make_engine(**options)
        self.now_s, self.requests = 0.0, []

    def add(self, *rows: Sequence[int]) -> list[bool]:
        could = []
        for adapter, prompt, output in rows:
            request = Request(len(self.requests), self.now_s, adapter, 16 if adapter else 0, prompt, output)
            self.requests.append(request)
            could.append(self.engine.enqueue(request, self.now_s))
        return could

    def step(self) -> StepPlan | None:
        plan = self.engine.form_step(self.now_s)
        assert list(self.engine.violations()) == []
        self.now_s += 1.0
        first, finished = self.engine.commit(1 if plan else 0, self.now_s)
        self.first, self.finished = [r.index for r in first], [r.index for r in finished]
        return plan

    def prompts(self) -> list[int]:
        return [request for request, _, _ in chunks(self.step())]


def test_a_step_has_one_whole_prompt_and_all_decodes() -> None:
    gpu = Gpu()
    gpu.add((0, 5000, 9), (0, 30, 9), (0, 10, 9))
    assert [chunks(gpu.step()) for _ in range(2)] == [[(0, 0, 5000)], [(1, 0, 30)]]
    plan = gpu.step()
    assert plan is not None and plan.decode_count == 2 and chunks(plan) == [(2, 0, 10)]
    assert gpu.first == [2]  # its first token comes out of that step
    assert plan.decode_context_tokens == 5001 + 30


def test_the_batch_has_a_largest_size() -> None:
    gpu = Gpu(max_batch_size=2)
    gpu.add((0, 5, 3), (0, 5, 9), (0, 5, 9))
    assert [gpu.prompts() for _ in range(3)] == [[0], [1], []] and gpu.finished == [0]
    assert gpu.engine.waiting_by_reason()[SEQS] == 1
    assert gpu.prompts() == [2]


def test_arrivals_cut_no_run_of_a_full_batch() -> None:
    gpu = Gpu(max_batch_size=1)
    gpu.add((0, 5, 50), (0, 5, 50))
    gpu.step()
    plan = gpu.step()
    assert plan is not None and plan.max_repeat > 1
    assert gpu.add((0, 5, 5)) == [False] and gpu.engine.arrival_reason == SEQS


# --- adapters


def test_a_request_joins_when_its_copy_is_complete_and_others_go_on() -> None:
    gpu = Gpu(copy_s=2.5)
    gpu.add((0, 5, 9), (1, 5, 9), (0, 5, 9))
    assert gpu.engine.wake_s == 2.5  # the copy began with the arrival, not with a step
    assert [gpu.prompts() for _ in range(4)] == [[0], [2], [], [1]]
    assert gpu.requests[1].load_tier == 1 and gpu.engine.counters().tiers == (0, 1, 0, 0)


def test_steps_are_priced_as_slowed_down_while_bytes_move() -> None:
    gpu = Gpu()
    copies = OverlapLoading(CopyEngine({"host": 1.0}), lambda rank, tier: [Stage("host", 2.5)])
    gpu.engine.adapters = PunicaAdapters(ResidentSet(4), copies)
    gpu.add((0, 5, 9), (1, 5, 9))
    plans = [gpu.step() for _ in range(4)]
    assert [plan is not None and plan.copying for plan in plans] == [True, True, True, False]


def test_an_adapter_in_a_buffer_is_not_copied_again() -> None:
    gpu = Gpu(copy_s=0.5)
    gpu.add((1, 5, 1))
    gpu.now_s = 1.0
    gpu.step()
    gpu.add((1, 5, 1))
    assert gpu.prompts() == [1]
    assert gpu.engine.counters().tiers == (1, 1, 0, 0) and gpu.engine.counters().loads_by_rank == {16: 1}


def test_requests_get_buffers_in_their_order_and_the_least_recently_used_leaves() -> None:
    gpu = Gpu(copy_s=0.5, buffers=1)
    gpu.add((1, 5, 2), (2, 5, 1), (1, 5, 1))
    gpu.now_s = 1.0
    assert gpu.prompts() == [0]
    assert gpu.engine.waiting_by_reason()[SLOTS] == 2  # request 2 does not pass request 1, though its adapter is there
    assert gpu.prompts() == []
    assert gpu.prompts() == [] and gpu.engine.counters().evictions == 1
    assert gpu.prompts() == [1]


def test_without_overlap_the_load_is_in_the_step() -> None:
    gpu = Gpu(copy_s=None)
    gpu.add((1, 5, 9), (1, 5, 9))
    plan = gpu.step()
    assert plan is not None and plan.loads == ((1, 16, "host"),)
    plan = gpu.step()
    assert plan is not None and plan.loads == ()


def test_one_rank_in_a_batch_is_an_invariant_and_a_rule_of_scenarios() -> None:
    engine = make_engine()
    for index, rank in enumerate((16, 32)):
        engine.enqueue(Request(index, 0.0, index + 1, rank, 5, 9), 0.0)
    engine.form_step(2.0)
    engine.commit(1, 3.0)
    engine.form_step(3.0)
    assert [name for name, _ in engine.violations()] == ["INV-4"]
    with pytest.raises(ConfigError, match="one rank"):
        scenario(adapters={"count": 4, "ranks": {16: 0.5, 32: 0.5}})


# --- memory


def test_out_of_pages_the_newest_starts_over_in_its_old_place() -> None:
    gpu = Gpu(kv_pages=5)
    gpu.add((0, 15, 40), (0, 15, 40), (0, 15, 2))
    gpu.step(), gpu.step(), gpu.step()
    while not gpu.engine.preempted:
        gpu.step()
    victim = gpu.engine.preempted[0]
    assert victim.index == 1 and victim.preemptions == 1
    assert victim.prefill_tokens == 15 + victim.emitted and gpu.engine.waiting_by_reason()[KV] == 1
    gpu.add((0, 5, 1))
    assert [r.index for r in gpu.engine.held] == [1, 3]
    while gpu.engine.running or gpu.engine.held:
        gpu.step()
    assert gpu.engine.used_blocks() == 0


def test_an_older_request_from_another_gpu_may_fit_where_the_next_one_does_not() -> None:
    gpu = Gpu(kv_pages=4)
    gpu.now_s = 5.0
    gpu.add((0, 30, 9), (0, 60, 2))
    gpu.step(), gpu.step()
    assert gpu.engine.waiting_by_reason()[KV] == 1
    assert gpu.add((0, 10, 2)) == [False] and gpu.engine.arrival_reason == KV
    assert gpu.engine.enqueue(Request(9, 0.5, 0, 0, 10, 2), gpu.now_s)
    assert gpu.prompts() == [9]


def test_decode_runs_end_where_pages_do() -> None:
    """Each has its second page from its first decode on; request 0, a step ahead, needs a third for its 17th."""
    gpu = Gpu(kv_pages=4)
    gpu.add((0, 16, 20), (0, 16, 20))
    gpu.step(), gpu.step()
    plan = gpu.step()
    assert plan is not None and plan.max_repeat == 15 and gpu.engine.free == 0


# --- placement


def views(*outstanding: int, usage: Sequence[float] = ()) -> list[View]:
    used = [*usage, *([0.0] * len(outstanding))]
    return [View(n, 0, used[i], frozenset(), 4, n) for i, n in enumerate(outstanding)]


def place(router: PunicaPlacement, index: int, *outstanding: int, usage: Sequence[float] = (), prompt: int = 10):  # type: ignore[no-untyped-def]
    return router.choose(Request(index, 0.0, 1, 16, prompt, 5), views(*outstanding, usage=usage), 0.0)


def test_a_request_goes_to_the_busiest_gpu_with_room() -> None:
    router = PunicaPlacement(4, 100, 16)
    assert place(router, 0, 1, 3, 2) == Send(1)
    assert place(router, 1, 1, 4, 2) == Send(2)


def test_ties_go_to_the_highest_index() -> None:
    assert place(PunicaPlacement(4, 100, 16), 0, 2, 0, 2, 1) == Send(2)
    assert place(PunicaPlacement(4, 100, 16), 0, 0, 0, 0) == Send(2)


def test_a_gpu_needs_free_pages_for_the_prompt() -> None:
    assert place(PunicaPlacement(4, 100, 16), 0, 1, 3, usage=(0.5, 0.99), prompt=20) == Send(0)
    assert place(PunicaPlacement(4, 100, 16), 0, 1, 3, usage=(0.5, 0.99), prompt=16) == Send(1)


def test_without_room_requests_wait_first_come_first_served() -> None:
    router = PunicaPlacement(2, 100, 16)
    assert place(router, 0, 2, 2) == Hold(WHEN_ROOM_S)
    assert place(router, 1, 0, 2) == Hold(WHEN_ROOM_S)  # not before request 0
    assert place(router, 0, 1, 2) == Send(0)
    assert place(router, 1, 2, 2) == Hold(WHEN_ROOM_S)
    assert place(router, 1, 2, 1) == Send(1)
    assert place(router, 2, 0, 1) == Send(1)


def test_the_least_busy_gpu_is_emptied_if_the_others_have_room_for_all() -> None:
    router = PunicaConsolidation(8, 100, 16, 1.0)
    assert isinstance(router, Ticking) and not isinstance(PunicaPlacement(8, 100, 16), Ticking)
    assert router.tick(1.0, views(6, 0, 3, 7)) == [Migrate(2, 3, 1), Migrate(2, 0, 2)]
    assert router.tick(1.0, views(7, 0, 3, 7)) == []  # one of them would stay
    assert router.tick(1.0, views(0, 5)) == [] and router.tick(1.0, views(0, 0)) == []


def test_consolidation_looks_at_pages_too() -> None:
    router = PunicaConsolidation(8, 100, 16, 1.0)
    assert router.tick(1.0, views(2, 6, usage=(0.2, 0.7))) == [Migrate(0, 1, 2)]
    assert router.tick(1.0, views(2, 6, usage=(0.2, 0.9))) == []


# --- several GPUs


def play(router: Any, rows: Sequence[tuple[float, int, int, int]], gpus: int = 2, **options: Any) -> Simulation:
    """rows: (arrival, adapter, prompt, output); every step takes 0.125 s, every copy 0.25 s."""
    requests = Requests(
        [Request(i, t, a, 16 if a else 0, prompt, output) for i, (t, a, prompt, output) in enumerate(rows)]
    )
    clock = Clock()
    replicas = [
        EngineReplica(i, make_engine(**{"copy_s": 0.25} | options), FixedStep(0.125), requests) for i in range(gpus)
    ]
    simulation = Simulation(clock, replicas, router, requests)
    simulation.run()
    return simulation


def test_a_request_moves_between_two_steps_and_gets_each_token_once() -> None:
    """Requests 0 and 1 are on GPU 1, request 2 on GPU 0; when request 0 is done at 1.5, request 2 moves."""
    rows = [(0.0, 0, 10, 11), (0.0, 0, 10, 40), (0.0, 0, 10, 20)]
    router = PunicaConsolidation(2, 1000, 16, 1.6)
    simulation = play(router, rows, max_batch_size=2)
    moved = simulation.requests[2]
    assert moved.replica == 1 and moved.emitted == 13 and moved.recomputed_tokens == 10 + 12
    assert moved.last_step - moved.start_step + 1 + moved.emitted == 20
    assert moved.interrupted == (0.25,)  # a token at 1.625, one step too late for the next plan, then one at 1.875
    assert moved.routed_s == 0.0 and moved.first_token_s == 0.125
    assert_conserves(simulation)
    assert [replica.finished for replica in simulation.replicas] == [0, 3]


def test_a_moved_request_loads_its_adapter_on_the_other_gpu() -> None:
    rows = [(0.0, 1, 10, 11), (0.0, 1, 10, 60), (0.0, 2, 10, 30)]
    simulation = play(PunicaConsolidation(2, 1000, 16, 2.0), rows, max_batch_size=2)
    assert [r.replica for r in simulation.requests] == [1, 1, 1]
    assert [r.engine.counters().loads_by_rank for r in simulation.replicas] == [{16: 1}, {16: 2}]
    assert_conserves(simulation)


def test_requests_wait_at_the_router_until_one_is_done() -> None:
    rows = [(0.0, 0, 10, 4), (0.0, 0, 10, 8), (0.0, 0, 10, 2), (0.0, 0, 10, 2)]
    simulation = play(PunicaPlacement(1, 1000, 16), rows, max_batch_size=1)
    assert [r.routed_s for r in simulation.requests] == [0.0, 0.0, 0.5, 0.75]
    assert_conserves(simulation)


def test_withdrawing_a_waiting_request_gives_its_buffer_back() -> None:
    gpu = Gpu(buffers=1, copy_s=5.0)
    gpu.add((1, 5, 2), (2, 5, 2))
    assert [gpu.engine.withdraw(request, 0.0) for request in (gpu.requests[1], gpu.requests[0])] == [False, False]
    assert gpu.engine.waiting_count() == 0 and list(gpu.engine.violations()) == []


# --- scenarios


def scenario(**sections: Any) -> Any:
    return scenario_from_dict({"model": "llama-2-7b", "gpu": "a100-80gb", "engine": {"kind": "punica"}} | sections)


def test_the_router_is_punicas_own() -> None:
    router = {"kind": "punica", "consolidate_s": 10.0}
    assert scenario(cluster={"replicas": 2, "router": router}).cluster.router.view_age_s == (0.0, 0.0)
    with pytest.raises(ConfigError, match=r"cluster\.router\.kind.*cannot hand over"):
        scenario(engine={"kind": "vllm"}, cluster={"replicas": 2, "router": router})
    with pytest.raises(ConfigError, match=r"cluster\.router\.consolidate_s"):
        scenario(cluster={"replicas": 2, "router": {"kind": "round-robin", "consolidate_s": 1.0}})


def test_other_routers_never_tick() -> None:
    assert not isinstance(RoundRobin(2), Ticking)


# --- kernels and parallelism


def test_every_step_takes_sgmv_at_28_launches_a_layer() -> None:
    """Four for each of the seven projections, whatever the adapters: Punica's add_lora_sgmv_custom_cutlass."""
    latency = wired("punica")
    for prompts in (0, 1):
        for adapters in (1, 8):
            name, family = kernels_of(latency, prompts, work(40, adapters))
            assert name == "sgmv" and family.launches(work(40, adapters)) == 28 * LAYERS


def test_a_replica_is_one_gpu() -> None:
    """Neither tensor parallelism nor stages; LoRA exchanges nothing."""
    with pytest.raises(ConfigError, match=r"engine\.tensor_parallel_size: 2: must be 1: Punica serves adapters on one"):
        scenario(engine={"kind": "punica", "tensor_parallel_size": 2})
    assert_no_stages("punica")
    assert wired("punica").price(decodes(32, 4)).collective_s == 0.0
