"""The baselines, rule by rule: sequential, grouped and merged-swap."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.latency_cases import decodes
from support.latency_cases import prompts as prefills
from support.wired import LAYERS, assert_no_stages, kernels_of, lora_exchange_s, wired, work

from simlora.engines.base import KV, SEQS, SLOTS, TOKENS
from simlora.engines.baselines.base import BaselineEngine, BaselineLimits
from simlora.engines.baselines.grouped import GroupedEngine
from simlora.engines.baselines.merged_swap import MergedSwapEngine
from simlora.engines.baselines.sequential import SequentialEngine
from simlora.engines.request import Request
from simlora.errors import ConfigError
from simlora.latency.families.work import CostedFamily
from simlora.latency.step import StepPlan
from simlora.memory.residents import ResidentSet
from simlora.results.summary import summarize
from simlora.scenario.load import scenario_from_dict
from simlora.sim.build import build_inputs
from simlora.sim.simulate import simulate


def limits(**changes: int) -> BaselineLimits:
    return BaselineLimits(
        **{"max_num_seqs": 8, "max_num_batched_tokens": 100, "kv_blocks": 1000, "block_size": 1} | changes
    )


class Line:
    """An engine driven by hand, one plan at a time."""

    def __init__(self, engine: BaselineEngine) -> None:
        self.engine, self.requests, self.now_s = engine, [], 0.0  # type: ignore[var-annotated]

    def add(self, *rows: tuple[int, int, int]) -> list[bool]:
        """Enqueue requests of (adapter, prompt, output); returns what enqueue said."""
        said = []
        for adapter, prompt, output in rows:
            request = Request(len(self.requests), self.now_s, adapter, 8 * adapter, prompt, output)
            self.requests.append(request)
            said.append(self.engine.enqueue(request, self.now_s))
        return said

    def step(self) -> StepPlan:
        plan = self.engine.form_step(self.now_s)
        assert plan is not None
        self.now_s += 1.0
        self.engine.commit(1, self.now_s)
        return plan

    def prompts(self) -> list[int]:
        return [prefill.request for prefill in self.step().prefills]

    def drain(self) -> list[int]:
        """Step until all is done; requests in the order of admission."""
        order = []
        while self.engine.running or self.engine.waiting_count():
            order += self.prompts()
        return order


def sequential(slots: int = 4, **changes: int) -> Line:
    return Line(SequentialEngine(limits(**changes), ResidentSet(slots)))


def grouped(slots: int = 4, **changes: int) -> Line:
    return Line(GroupedEngine(limits(**changes), ResidentSet(slots)))


def merged(**changes: int) -> Line:
    return Line(MergedSwapEngine(limits(**changes), ResidentSet(1), lambda rank, old: rank + old / 1000))


# --- sequential -------------------------------------------------------------------------------------------------------


def test_prompts_and_decodes_of_any_adapters_share_a_step() -> None:
    line = sequential()
    line.add((1, 10, 5), (2, 20, 5), (0, 5, 5))
    assert line.prompts() == [0, 1, 2]
    line.add((3, 7, 5))
    plan = line.step()
    assert (plan.decode_count, plan.num_tokens, plan.num_adapters) == (3, 10, 3)
    assert plan.mix is not None and (plan.mix.rank_sum, plan.mix.distinct_ranks) == (8 + 16 + 24, 3)


def test_memory_for_the_whole_answer_is_taken_at_admission() -> None:
    line = sequential(kv_blocks=30)
    line.add((0, 10, 11), (0, 10, 2))
    assert line.prompts() == [0]
    assert line.engine.used_blocks() == 20 and line.engine.blocked == KV
    assert line.drain() == [1]
    assert line.engine.preemptions == 0


def test_the_head_of_the_queue_stops_those_behind_it() -> None:
    line = sequential(kv_blocks=30)
    line.add((0, 10, 11), (0, 10, 2), (0, 1, 1))
    assert line.prompts() == [0]
    assert line.prompts() == []


@pytest.mark.parametrize(
    "changes, row, reason",
    [({"max_num_seqs": 1}, (0, 5, 5), SEQS), ({"kv_blocks": 40}, (0, 30, 5), KV), ({}, (2, 5, 5), SLOTS),
     ({}, (0, 100, 5), TOKENS)],
)  # fmt: skip
def test_why_an_arrival_waits(changes: dict[str, int], row: tuple[int, int, int], reason: int) -> None:
    line = sequential(1, **changes)
    line.add((1, 10, 20))
    line.step()
    assert line.add(row) == [False] and line.engine.arrival_reason == reason
    line.step()
    assert line.engine.waiting_by_reason()[reason] == 1


def test_an_adapter_is_loaded_once_and_the_one_used_longest_ago_leaves() -> None:
    line = sequential(2)
    line.add((1, 5, 1), (2, 5, 1))
    assert line.step().loads == ((1, 8, "host"), (2, 16, "host"))
    line.add((1, 5, 1))
    assert line.step().loads == ()
    line.add((3, 5, 1))
    assert line.step().loads == ((3, 24, "host"),)
    assert set(line.engine.slots or ()) == {1, 3}
    assert line.engine.counters().evictions == 1
    assert line.engine.counters().tiers == (1, 3, 0, 0)


def test_prompts_are_not_split() -> None:
    line = sequential(max_num_batched_tokens=30)
    line.add((0, 20, 3), (0, 20, 3))
    assert line.prompts() == [0] and line.prompts() == [1]
    assert not line.engine.fits(Request(9, 0.0, 0, 0, 31, 1))


# --- grouped ----------------------------------------------------------------------------------------------------------


def test_a_batch_holds_one_adapter() -> None:
    line = grouped()
    line.add((1, 5, 3), (2, 5, 3), (1, 5, 3), (0, 5, 3))
    assert line.prompts() == [0, 2]
    assert line.engine.waiting_by_reason()[SLOTS] == 2
    assert line.drain() == [1, 3]


def test_the_next_batch_is_that_of_the_oldest_request() -> None:
    line = grouped()
    line.add((1, 5, 2), (3, 5, 2), (2, 5, 2), (2, 5, 2), (2, 5, 2))
    assert line.drain() == [0, 1, 2, 3, 4]


def test_base_requests_are_a_group() -> None:
    line = grouped()
    line.add((0, 5, 3), (1, 5, 3), (0, 5, 3))
    assert line.drain() == [0, 2, 1]


def test_the_batch_takes_more_of_its_adapter_while_it_runs() -> None:
    line = grouped()
    line.add((1, 5, 9))
    line.step()
    line.add((2, 5, 3), (1, 5, 3))
    assert line.prompts() == [2]


def test_waiting_requests_of_others_close_the_batch() -> None:
    line = grouped(switch_after=2)
    line.add((1, 5, 9))
    line.step()
    line.add((2, 5, 3))
    assert line.add((1, 5, 3)) == [True]
    assert line.prompts() == [2]
    line.add((3, 5, 3))
    assert line.add((1, 5, 3)) == [False]
    assert line.engine.arrival_reason == SLOTS
    assert line.drain() == [1, 3, 4]


def test_a_batch_opens_with_all_that_wait_for_it() -> None:
    """However many others wait; a short token budget only spreads it over steps."""
    line = grouped(switch_after=1, max_num_batched_tokens=12)
    line.add((1, 5, 9), (2, 5, 3), (1, 5, 9), (1, 5, 9))
    assert line.prompts() == [0, 2] and line.prompts() == [3]


def test_a_batch_begins_with_the_load_of_its_adapter() -> None:
    """From host memory, in the step that needs it; an adapter that still has its slot is not loaded again."""
    line = grouped(2)
    line.add((1, 5, 1), (2, 5, 2), (1, 5, 1), (2, 5, 2))
    assert line.step().loads == ((1, 8, "host"),)
    assert line.step().loads == ((2, 16, "host"),)
    line.drain()
    line.add((1, 5, 1))
    assert line.step().loads == ()


# --- merged-swap ------------------------------------------------------------------------------------------------------


def test_a_switch_unmerges_and_merges_before_the_first_step() -> None:
    line = merged()
    line.add((1, 5, 2), (2, 5, 2), (0, 5, 2), (1, 5, 2))
    first = line.step()
    assert first.extra_s == 8.0 and first.loads == ((1, 8, "host"),)
    assert line.step().extra_s == 0.0 and line.engine.decodes.count == 0  # requests 0 and 3 are done
    assert line.step().extra_s == 16 + 0.008
    line.step()
    assert line.step().extra_s == 0.016  # back to the plain weights


def test_the_same_adapter_again_costs_nothing() -> None:
    line = merged()
    line.add((1, 5, 1))
    line.step()
    line.add((1, 5, 1))
    plan = line.step()
    assert plan.extra_s == 0.0 and plan.loads == ()


# --- through the scenario ---------------------------------------------------------------------------------------------

KINDS = ("sequential", "grouped", "merged-swap")


def scenario(kind: str, engine: dict[str, Any] | None = None, **adapters: Any) -> Any:
    return scenario_from_dict(
        {
            "model": "llama-2-7b", "gpu": "a100-80gb", "engine": {"kind": kind, "max_num_seqs": 16, **(engine or {})},
            "adapters": {"count": 10, "ranks": {8: 0.5, 32: 0.5}, "base_fraction": 0.1, **adapters},
            "workload": {
                "arrivals": {"kind": "poisson", "rate_rps": 4}, "num_requests": 80,
                "prompt_tokens": {"kind": "lognormal", "median": 100, "sigma": 0.7, "max": 1000},
                "output_tokens": {"kind": "lognormal", "median": 40, "sigma": 0.7, "max": 300},
            },
        }
    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_scenario_runs_alike_coalesced_and_step_by_step(kind: str) -> None:
    inputs = build_inputs(scenario(kind))
    one, other = (simulate(inputs, coalesce=coalesce, check=True) for coalesce in (True, False))
    assert np.array_equal(one.requests.last_token_s, other.requests.last_token_s)
    summary = summarize(one)
    assert summary["requests"]["completed"] == 80
    assert summary["ranks"]["padded_compute_waste_fraction"] in (0.0, None)
    assert max(one.extrapolated_s.values()) > 0


def test_merged_weights_need_no_lora_kernels() -> None:
    log = simulate(build_inputs(scenario("merged-swap")))
    runs = log.replicas[0].runs
    assert runs["lora_s"].sum() == 0 and runs["load_s"].sum() > 0


def test_pinned_adapters_stay_where_the_engine_can_pin() -> None:
    log = simulate(build_inputs(scenario("grouped", {"max_loras": 2}, pinned=[3])), check=True)
    assert (log.requests.load_tier[log.requests.adapter == 3] == 0).all()
    with pytest.raises(ConfigError, match=r"adapters\.pinned"):
        scenario("merged-swap", pinned=[3])


@pytest.mark.parametrize("kind", KINDS)
def test_loads_on_a_side_stream_are_refused(kind: str) -> None:
    with pytest.raises(ConfigError, match=r"engine\.adapter_loading\.overlap: True: must be false"):
        scenario(kind, {"adapter_loading": {"overlap": True}})


@pytest.mark.parametrize("kind", ["grouped", "sequential"])
def test_a_pair_of_gemms_for_each_adapter_and_projection(kind: str) -> None:
    """Batches of one adapter take the same loop, once; no CUDA graphs."""
    latency = wired(kind)
    for prompts in (0, 1):
        name, family = kernels_of(latency, prompts, work(40, 4))
        assert name == "loop" and isinstance(family, CostedFamily)
        for adapters in (1, 4):
            asked = work(40, adapters)
            assert sum(family.cost(group, asked).products for group in family.groups) == 2 * 7 * LAYERS * adapters
    assert latency.profile.graph is None


@pytest.mark.parametrize("kind", KINDS)
def test_four_gpus_exchange_what_the_base_model_does_and_no_stages(kind: str) -> None:
    latency = wired(kind, tensor_parallel_size=4)
    for plan in (decodes(32, 4), prefills(2, 200, 2)):
        assert lora_exchange_s(latency, plan) == 0.0 < latency.price(plan).collective_s
    assert_no_stages(kind)
