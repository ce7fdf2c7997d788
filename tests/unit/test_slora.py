"""S-LoRA's rules by name, one engine driven by hand; laws and the naive loop are in tests/laws/test_slora_laws.py."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.latency_cases import decodes
from support.naive_slora import Policy
from support.slora_cases import FAST, FCFS, LIMITS, Case, SideLatency
from support.wired import LAYERS, assert_no_stages, kernels_of, lora_exchange_s, wired, work

from simlora.engines.base import KV, NEVER_S, SEQS, SLOTS, TOKENS
from simlora.engines.request import Request
from simlora.engines.slora.build import make_engine, make_queue
from simlora.engines.slora.engine import SloraEngine
from simlora.errors import ConfigError
from simlora.latency.step import StepPlan
from simlora.scenario.load import scenario_from_dict
from simlora.sim.build import build_inputs
from simlora.sim.simulate import simulate


class Stepper:
    """Plans steps of one second each; while the engine sleeps, time moves on to when it wakes."""

    def __init__(self, policy: Policy = FCFS, bytes_per_tick: float = FAST, **limits: object) -> None:
        case = Case(replace(LIMITS, **limits), (), SideLatency(), policy, bytes_per_tick)  # type: ignore[arg-type]
        self.engine: SloraEngine = case.engine()
        self.now_s = 0.0
        self.requests: list[Request] = []

    def add(self, *rows: tuple[int, int, int], rank: int = 4) -> list[bool]:
        """Requests of (adapter, prompt, output); returns what enqueue said."""
        could = []
        for adapter, prompt, output in rows:
            request = Request(len(self.requests), self.now_s, adapter, rank if adapter else 0, prompt, output)
            request.routed_s = self.now_s
            self.requests.append(request)
            could.append(self.engine.enqueue(request, self.now_s))
        return could

    def step(self) -> StepPlan:
        """One planned step, run once."""
        plan = self.engine.form_step(self.now_s)
        while plan is None:
            self.engine.commit(0, self.now_s)
            assert self.now_s < self.engine.wake_s < NEVER_S
            self.now_s = self.engine.wake_s
            plan = self.engine.form_step(self.now_s)
        self.now_s += 1.0
        self.engine.commit(1, self.now_s)
        assert list(self.engine.violations()) == []
        return plan

    def until_prefill(self, most: int = 300) -> tuple[int, list[int]]:
        """(decode steps before it, who was in it)."""
        for steps in range(most):
            plan = self.step()
            if plan.prefills:
                return steps, [prefill.request for prefill in plan.prefills]
        raise AssertionError("nobody was let in")


# --- the loop ---------------------------------------------------------------------------------------------------


def test_prompts_and_decodes_never_share_a_step() -> None:
    stepper = Stepper()
    stepper.add((0, 10, 50))
    assert stepper.step().decode_count == 0
    stepper.add((0, 10, 50))
    kinds = [(len(plan.prefills), plan.decode_count) for plan in (stepper.step() for _ in range(12))]
    assert kinds == [(0, 1)] * 10 + [(1, 0)] + [(0, 2)]


def test_the_queue_is_looked_at_ten_decode_steps_after_a_prefill() -> None:
    stepper = Stepper()
    stepper.add((0, 10, 80))
    stepper.step()
    stepper.add((0, 10, 50))
    assert stepper.until_prefill() == (10, [1])
    for _ in range(25):
        stepper.step()
    stepper.add((0, 10, 50))
    assert stepper.until_prefill() == (0, [2])


def test_an_idle_loop_looks_every_ten_milliseconds_from_when_it_fell_idle() -> None:
    stepper = Stepper(idle_s=0.01)
    stepper.now_s = 0.123
    stepper.add((0, 10, 2))
    stepper.step()
    assert stepper.requests[0].admitted_s == pytest.approx(0.13)
    stepper.step()
    idle_s = stepper.now_s
    stepper.now_s += 0.026
    stepper.add((0, 10, 1))
    stepper.step()
    assert stepper.requests[1].admitted_s == pytest.approx(idle_s + 0.03)


def test_who_waits_when_the_last_one_leaves_waits_for_the_next_look() -> None:
    """The loop sleeps after each step that leaves nobody, whether anybody waits or not."""
    stepper = Stepper(idle_s=0.01, running_max_req_size=1)
    stepper.add((0, 10, 2), (0, 10, 2))
    stepper.step()
    stepper.step()
    idle_s = stepper.now_s
    stepper.step()
    assert stepper.requests[1].admitted_s == pytest.approx(idle_s + 0.01)


def test_steps_are_planned_up_to_the_next_look() -> None:
    stepper = Stepper()
    stepper.add((0, 10, 100))
    stepper.step()
    assert stepper.step().max_repeat == 99
    assert stepper.add((0, 10, 10), (0, 10, 10)) == [True, False]
    assert stepper.step().max_repeat == 9


# --- admission --------------------------------------------------------------------------------------------------


def test_the_worst_case_counts_tokens_that_were_only_asked_for() -> None:
    """Two requests of 10 + 90 tokens would hold 200 at the end, so one must wait for the other, short as it is now."""
    stepper = Stepper(kv_units=200)
    stepper.add((0, 10, 90), (0, 10, 90))
    assert stepper.until_prefill() == (0, [0])
    assert stepper.engine.blocked == KV
    wider = Stepper(kv_units=201)
    wider.add((0, 10, 90), (0, 10, 90))
    assert wider.until_prefill() == (0, [0, 1])


def test_a_refusal_ends_when_the_running_request_has_little_left() -> None:
    """101 + 60 tokens never fit 150 at once, but the other has fewer and fewer to come: 60 of its own at its end."""
    stepper = Stepper(kv_units=150)
    stepper.add((0, 20, 80))
    stepper.step()
    stepper.add((0, 10, 60))
    steps, batch = stepper.until_prefill()
    assert batch == [1] and 10 < steps < 79
    assert stepper.engine.worst.need() < 150


def test_adapters_are_charged_by_their_rows_against_the_pool() -> None:
    """Rank 4 takes 16 rows: 100 + 16 < 117, and not < 116."""
    for units, fits in ((117, True), (116, False)):
        assert Stepper(kv_units=units).engine.fits(Request(0, 0.0, 1, 4, 20, 80)) is fits
    stepper = Stepper(kv_units=149)
    stepper.add((1, 10, 50), (1, 10, 50), (2, 10, 1))
    assert stepper.until_prefill()[1] == [0, 1]


def test_a_prefill_holds_at_most_batch_max_tokens_and_seats_are_limited() -> None:
    stepper = Stepper(kv_units=2000, batch_max_tokens=50, running_max_req_size=3)
    stepper.add((0, 30, 90), (0, 20, 90), (0, 1, 90), (0, 1, 90))
    assert stepper.until_prefill() == (0, [0, 1])
    assert stepper.engine.blocked == TOKENS
    assert stepper.until_prefill() == (10, [2])
    for _ in range(10):
        stepper.step()
    assert stepper.step().max_repeat > 1 and stepper.engine.blocked == SEQS
    assert not stepper.engine.fits(Request(9, 0.0, 0, 0, 51, 1))


def test_nobody_overtakes_the_first_that_does_not_fit() -> None:
    stepper = Stepper(kv_units=200)
    stepper.add((0, 10, 100), (0, 10, 120), (0, 1, 1))
    assert stepper.until_prefill() == (0, [0])
    assert stepper.until_prefill()[1][0] == 1


# --- adapters ---------------------------------------------------------------------------------------------------


def test_published_code_frees_adapters_at_once_and_loads_them_again() -> None:
    stepper = Stepper(cached=False)
    for _ in range(3):
        stepper.add((1, 10, 2))
        plan = stepper.step()
        assert plan.loads == ((1, 4, "host"),) and stepper.engine.loading == [stepper.requests[-1]]
        stepper.step()
        assert list(stepper.engine.pool) == []
    counters = stepper.engine.counters()
    assert counters.tiers == (0, 3, 0, 0) and counters.loads_by_rank == {4: 3} and counters.evictions == 3


def test_published_code_frees_nothing_when_a_request_ends_with_its_prefill_and_others_run() -> None:
    stepper = Stepper(cached=False)
    stepper.add((1, 10, 5), (2, 10, 1))
    stepper.step()
    assert set(stepper.engine.pool) == {1, 2}
    for _ in range(4):
        stepper.step()
    assert set(stepper.engine.pool) == set()


def test_the_paper_system_keeps_idle_adapters_until_keys_and_values_need_the_room() -> None:
    """With 100 rows, three idle adapters of 16 leave 52; a request of 60 tokens takes the oldest one's, no more."""
    stepper = Stepper(kv_units=100)
    for adapter in (1, 2, 3):
        stepper.add((adapter, 5, 1))
        stepper.step()
    assert sorted(stepper.engine.pool) == [1, 2, 3]
    stepper.add((0, 55, 10))
    stepper.step()
    assert sorted(stepper.engine.pool) == [2, 3]
    for _ in range(9):
        stepper.step()
    stepper.add((1, 5, 1), (2, 5, 1))
    plan = stepper.step()
    assert plan.loads == ((1, 4, "host"),)
    assert stepper.engine.counters().tiers == (1, 4, 0, 0)


def test_static_split_adapters_get_their_own_rows_only() -> None:
    stepper = Stepper(kv_units=100, unified=False, charged=False, adapter_units=20)
    assert stepper.engine.fits(Request(0, 0.0, 1, 4, 50, 49)) and not stepper.engine.fits(Request(0, 0.0, 1, 6, 1, 1))
    stepper.add((1, 10, 20), (2, 10, 5))
    assert stepper.until_prefill() == (0, [0])
    assert stepper.engine.blocked == SLOTS
    steps, batch = stepper.until_prefill()
    assert batch == [1] and steps == 19


def test_overlapped_loads_let_the_batch_decode_meanwhile() -> None:
    """The request waits for its copy: two seconds, two steps."""
    stepper = Stepper(overlap=True, bytes_per_tick=2.0**-5)
    stepper.add((0, 10, 60))
    stepper.step()
    stepper.add((1, 10, 5), rank=1)
    plans = [stepper.step() for _ in range(10)]
    started, beside = stepper.step(), stepper.step()
    assert not started.prefills and not beside.prefills and beside.copying
    assert stepper.engine.waiting_by_reason()[SLOTS] == 1 and not any(plan.copying for plan in plans)
    assert stepper.until_prefill() == (1, [1])
    assert stepper.requests[1].load_tier == 1 and stepper.step().loads == ()


def test_prefetch_brings_adapters_of_the_queue_before_they_are_let_in() -> None:
    """At five and seven decode steps after a prefill."""
    stepper = Stepper(overlap=True, prefetch=True, kv_units=1000)
    stepper.add((0, 10, 100))
    stepper.step()
    stepper.add((1, 10, 5), (2, 10, 5))
    for _ in range(5):
        stepper.step()
        assert list(stepper.engine.pool) == []
    stepper.step()
    assert list(stepper.engine.pool) == [1, 2]
    assert stepper.until_prefill() == (4, [1, 2])
    assert stepper.engine.counters().tiers == (2, 0, 0, 0)


def test_prefetch_leaves_alone_what_the_running_requests_will_need() -> None:
    stepper = Stepper(overlap=True, prefetch=True, kv_units=130)
    stepper.add((0, 10, 90))
    stepper.step()
    stepper.add((1, 10, 20), (2, 10, 20))
    for _ in range(8):
        stepper.step()
    assert list(stepper.engine.pool) == [1]


# --- other queues -----------------------------------------------------------------------------------------------


def test_clustering_prefers_adapters_of_the_running_batch_but_does_not_limit_them() -> None:
    stepper = Stepper(Policy("cluster", 1), kv_units=1000, batch_max_tokens=25)
    stepper.add((1, 10, 90))
    stepper.step()
    stepper.add((2, 10, 90), (3, 10, 90), (1, 10, 90))
    assert stepper.until_prefill() == (10, [3, 1])


def test_early_abort_gives_up_requests_that_would_miss_six_seconds() -> None:
    """Steps of a second: at 5.5 s of age a request is given up, at the next look."""
    stepper = Stepper(Policy("abort", 6.0), running_max_req_size=2, kv_units=100)
    stepper.add((0, 10, 50))
    stepper.step()
    stepper.add((0, 10, 70))
    for _ in range(11):
        stepper.step()
    assert stepper.engine.waiting_count() == 0 and stepper.engine.counters().aborted == 1


def test_early_abort_serves_the_newest_first_when_more_arrive_than_are_served() -> None:
    stepper = Stepper(Policy("abort", 1e6), kv_units=1000, batch_max_tokens=15)
    stepper.add((0, 10, 90), (0, 10, 90), (0, 10, 90))
    assert stepper.until_prefill() == (0, [2])


def test_fair_queue_serves_whoever_was_served_least() -> None:
    """Adapter 1 floods the queue first; adapter 2 comes later and is next all the same."""
    stepper = Stepper(Policy("vtc"), kv_units=400, batch_max_tokens=20)
    stepper.add((1, 20, 90), (1, 20, 90), (1, 20, 90))
    stepper.step()
    stepper.add((2, 20, 90))
    assert stepper.until_prefill() == (10, [3])
    assert stepper.until_prefill() == (10, [1])


# --- from a scenario --------------------------------------------------------------------------------------------


def _scenario(**engine: object) -> object:
    return scenario_from_dict(
        {
            "model": engine.pop("model", "llama-2-7b"),
            "gpu": engine.pop("gpu", "a10g"),
            "engine": {"kind": "slora", "gpu_memory_utilization": 0.95, "max_model_len": 2048, **engine},
            "adapters": {"count": 40, "ranks": {8: 0.5, 64: 0.5}},
            "workload": {
                "duration_s": 60,
                "arrivals": {"kind": "poisson", "rate_rps": 2},
                "prompt_tokens": {"kind": "uniform", "min": 8, "max": 511},
                "output_tokens": {"kind": "uniform", "min": 8, "max": 200},
            },
        }
    )


@pytest.mark.parametrize(
    "engine",
    [
        {},
        {"artifact": True},
        {"page": "64KiB"},
        {"unified_memory": False, "pool_size_lora": 2000, "max_total_token_num": 8000},
        {"adapter_loading": {"overlap": False, "prefetch": False}, "scheduler": "vtc"},
        {"batch_num_adapters": 4},
        {"model": "llama-3.1-8b", "gpu": "h100-80gb"},
        {"model": "llama-3.1-8b", "gpu": "h100-80gb", "tensor_parallel_size": 2, "early_abort": True},
    ],
)
def test_scenarios_run_with_every_invariant_checked(engine: dict[str, object]) -> None:
    log = simulate(build_inputs(_scenario(**engine)), check=True)  # type: ignore[arg-type]
    done = log.requests.last_token_s == log.requests.last_token_s
    assert done.mean() > 0.8 and log.replicas[0].loads > 0


def test_the_default_loads_ahead_and_keeps_what_it_loaded() -> None:
    """Same requests: the published code loads an adapter for nearly every request."""
    paper, artifact = (
        simulate(build_inputs(_scenario(artifact=value))).replicas[0]  # type: ignore[arg-type]
        for value in (False, True)
    )
    assert artifact.loads > 0.6 * (artifact.gpu_hits + artifact.host_hits)
    assert paper.loads < 0.6 * artifact.loads


def test_published_code_refuses_what_it_cannot_serve() -> None:
    for engine, message in (
        ({"artifact": True, "model": "llama-3.1-8b", "gpu": "h100-80gb"}, "multi-head"),
        ({"artifact": True, "tensor_parallel_size": 2}, "one GPU"),
    ):
        with pytest.raises(ConfigError, match=message):
            _scenario(**engine)


def test_the_queue_follows_the_settings() -> None:
    names = {}
    for engine in ({}, {"scheduler": "vtc"}, {"batch_num_adapters": 2}, {"early_abort": True}):
        inputs = build_inputs(_scenario(**engine))  # type: ignore[arg-type]
        names[str(engine)] = type(make_queue(inputs.scenario.engine)).__name__  # type: ignore[arg-type]
        assert type(make_engine(inputs).queue).__name__ == names[str(engine)]
    assert list(names.values()) == ["FcfsQueue", "FairQueue", "ClusterQueue", "AbortQueue"]


# --- kernels and parallelism ------------------------------------------------------------------------------------------


def test_prompts_take_mbgmm_and_decodes_mbgmv() -> None:
    """At own ranks; no CUDA graphs, so that every launch takes host time."""
    latency = wired("slora")
    assert kernels_of(latency, 2, work(200, 2))[0] == "mbgmm"
    name, family = kernels_of(latency, 0, work(8, 4))
    assert name == "mbgmv" and family.launches(work(8, 4, distinct_ranks=3)) == family.launches(work(8, 4))
    assert latency.profile.graph is None


def test_four_gpus_gather_once_for_q_k_and_v_and_no_stages() -> None:
    """5 (N - 1) / N of the rows' ranks cross each link: a gather of three, and two in the base model's all-reduce."""
    latency, plan = wired("slora", tensor_parallel_size=4), decodes(32, 4)
    gather_s = latency.collectives.link_s(5 * 3 / 4 * 32 * 16 * 2)
    assert lora_exchange_s(latency, plan) == pytest.approx(LAYERS * gather_s)
    one = wired("slora")
    assert lora_exchange_s(one, plan) == 0.0
    assert 4 * latency.transfers.copy_bytes(16) == one.transfers.copy_bytes(16)  # A and B are both split
    assert_no_stages("slora")
