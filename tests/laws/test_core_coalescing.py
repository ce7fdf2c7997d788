"""A coalesced run equals the same run step by step: bit by bit in time, and in what its rows add up to."""

from __future__ import annotations

import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[1]))

from support.cases import ALONE, LATENCIES, REBUILDING, TABLES, Case, Cluster, cases, clusters, cuts, examples
from support.compare import outcome, row_sums, same_sums
from support.fakes import TICK_S, FakeLatency, RoundLatency, share_prefixes

from simlora.engines.vllm.batch import VllmLimits
from simlora.engines.vllm.prefix_cache import PrefixCache
from simlora.engines.vllm.replica import VllmReplica
from simlora.engines.vllm.speculative import SpeculativeBatch
from simlora.scenario.load import scenario_from_dict
from simlora.sim.build import build_inputs
from simlora.sim.log_builder import run_columns
from simlora.sim.simulate import simulate
from simlora.sim.simulation import Simulation

ALL: tuple[Any, ...] = (
    *LATENCIES.values(),
    *REBUILDING.values(),
    *TABLES.values(),
    FakeLatency(),
    FakeLatency(host_s=0.0041),
)
LIMITS = VllmLimits(
    max_num_seqs=4,
    max_num_batched_tokens=64,
    kv_blocks=300,
    block_size=1,
    max_loras=0,
    max_lora_rank=16,
    async_scheduling=True,
)


def both(case: Case, cluster: Cluster, cut_s: float | None = None, **kw: Any) -> list[Simulation]:
    return [cluster.play(case, coalesce, cut_s, **kw) for coalesce in (True, False)]


def agree(one: Simulation, other: Simulation) -> None:
    assert outcome(one) == outcome(other)


def agree_in_sums(one: Simulation, other: Simulation, but: tuple[str, ...] = ()) -> None:
    for a, b in zip(one.replicas, other.replicas, strict=True):
        sums = [{name: v for name, v in row_sums(r).items() if name not in but} for r in (a, b)]
        assert same_sums(*sums) == []


@examples(160)
@given(cases(latencies=ALL), clusters)
def test_requests_and_counters(case: Case, cluster: Cluster) -> None:
    agree(*both(case, cluster))


@examples(100)
@given(cases(latencies=ALL, spare_kv=(100, 200), max_output=60, requests=8), clusters)
def test_long_runs(case: Case, cluster: Cluster) -> None:
    agree(*both(case, cluster))


BY_REASON = ("waiting_slots_s", "waiting_kv_s", "waiting_seqs_s", "waiting_tokens_s")


@examples(130)
@given(cases(latencies=ALL), clusters)
def test_sums_over_rows(case: Case, cluster: Cluster) -> None:
    agree_in_sums(*both(case, cluster), but=BY_REASON)


@examples(130)
@given(cases(latencies=ALL), clusters)
def test_waiting_time_by_reason(case: Case, cluster: Cluster) -> None:
    agree_in_sums(*both(case, cluster))


def test_waiting_for_a_slot_while_memory_blocks_the_queue() -> None:
    """Request 1 waits for memory; request 2 would find no slot either, and its plan-by-plan reason is the slot."""
    limits = replace(LIMITS, max_loras=1, kv_blocks=40)
    case = Case(limits, ((0, 1, 8, 30), (240_000, 1, 30, 1), (16_000, 2, 1, 1)), RoundLatency(), 1)
    agree_in_sums(*both(case, ALONE))


def test_waiting_for_the_only_seat() -> None:
    """One decode takes all of the budget and the seat: the seat is what the arrival waits for, plan or no plan."""
    limits = replace(LIMITS, max_num_seqs=1, max_num_batched_tokens=1, kv_blocks=6, async_scheduling=False)
    agree_in_sums(*both(Case(limits, ((0, 0, 1, 5), (40_000, 0, 1, 1)), RoundLatency(host=9000), 0), ALONE))


def test_the_run_ends_with_its_last_token() -> None:
    """The arrival cuts a long run short; the wake-up at that run's end is void."""
    limits = replace(LIMITS, max_num_seqs=2, max_num_batched_tokens=2, kv_blocks=4, async_scheduling=False)
    case = Case(limits, ((0, 0, 1, 3), (8000, 0, 1, 1)), RoundLatency(front_out=0), 0)
    one, other = both(case, ALONE)
    assert other.end_s == max(r.last_token_s for r in other.requests)
    assert one.end_s == other.end_s


@examples(130)
@given(cases(latencies=ALL, spare_kv=(20, 100), max_output=60), clusters, st.data())
def test_cut_runs(case: Case, cluster: Cluster, data: st.DataObject) -> None:
    cut_s = data.draw(cuts(case))
    one, other = both(case, cluster, cut_s)
    agree(one, other)
    agree_in_sums(one, other, but=BY_REASON)
    for replica in one.replicas:
        assert row_end_s(replica) <= cut_s


def row_end_s(replica: VllmReplica) -> float:
    """End of the last row."""
    rows = run_columns(replica.log)
    if not len(rows["steps"]):
        return 0.0
    later = rows["steps"][-1] - 1
    return float(
        rows["start_s"][-1] + rows["first_gap_s"][-1] + later * rows["gap_s"][-1]
        + rows["slope_s"][-1] * later * (later - 1) / 2
    )  # fmt: skip


def test_nothing_is_admitted_before_it_came() -> None:
    """Request 1 comes within the step in which the recording stops."""
    case = Case(LIMITS, ((0, 0, 8, 60), (100_000, 0, 8, 1)), RoundLatency(), 0)
    for simulation in both(case, ALONE, cut_s=102_000 * TICK_S):
        late = simulation.requests[1]
        assert not late.admitted_s < late.routed_s


def test_a_cut_leaves_no_row_behind_it() -> None:
    """No further arrival stands between the cut and the end of the run that it falls into."""
    case = Case(LIMITS, ((0, 0, 8, 200), (1000, 0, 8, 250)), RoundLatency(), 0)
    cut_s = 400_000 * TICK_S
    one, other = both(case, ALONE, cut_s)
    assert row_end_s(one.replicas[0]) <= cut_s
    agree_in_sums(one, other)


@examples(100)
@given(
    cases(latencies=ALL),
    clusters,
    st.integers(1, 3),
    st.lists(st.integers(0, 3), min_size=16, max_size=16),
)
def test_with_prefix_caching(case: Case, cluster: Cluster, granule_blocks: int, groups: list[int]) -> None:
    agree(*shared(case, cluster, granule_blocks, groups))


def shared(case: Case, cluster: Cluster, granule_blocks: int, groups: list[int]) -> list[Simulation]:
    """Both modes, with prompts that begin alike within a group."""
    block_size = case.limits.block_size
    granule, out = granule_blocks * block_size, []
    for coalesce in (True, False):
        requests = case.requests()
        share_prefixes(requests, granule, groups)
        kw: dict[str, Any] = {**vars(cluster), "cache": lambda requests: PrefixCache(granule, block_size, requests)}
        simulation = case.simulation(requests, coalesce, **kw)
        simulation.run()
        out.append(simulation)
    return out


def test_a_leaver_returns_its_blocks_before_the_cache_has_to_shrink() -> None:
    """Request 6 finds the granule that request 5 left, unless a long run threw it out for blocks it did not need."""
    rows = (*[(0, 0, 1, 1)] * 3, (0, 0, 1, 21), (0, 0, 5, 17), (0, 0, 1, 1), (400_000, 0, 4, 1), (0, 0, 1, 1))
    limits = replace(LIMITS, max_num_seqs=3, max_num_batched_tokens=3, kv_blocks=42, reserve_full_prompt=False)
    agree(*shared(Case(limits, rows, FakeLatency(), 0), ALONE, 1, [0, 0, 0, 0, 0, 1, 1, 0]))  # type: ignore[arg-type]


@examples(100)
@given(cases(latencies=ALL, spare_kv=(20, 40)), clusters, st.integers(1, 4), st.sampled_from((0.0, 0.5, 0.9, 1.0)))
def test_with_speculation(case: Case, cluster: Cluster, draft: int, acceptance: float) -> None:
    seats, size = case.limits.max_num_seqs, case.limits.block_size
    case = case.with_limits(max_num_batched_tokens=max(case.limits.max_num_batched_tokens, seats * (1 + draft)))
    one, other = both(case, cluster, decodes=lambda: SpeculativeBatch(size, draft, acceptance, 0))
    agree(one, other)
    agree_in_sums(one, other, but=BY_REASON)


ENGINES = (
    {},
    {"version": "0.8.5"},
    {"enforce_eager": True},
    {"async_scheduling": False},
    {"speculative": {"num_speculative_tokens": 2, "acceptance_rate": 0.6}},
)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda e: next(iter(e), "default"))
def test_a_calibrated_scenario(engine: dict[str, Any]) -> None:
    """Measured latencies, two replicas, everything checked at every plan."""
    scenario = scenario_from_dict(
        {
            "model": "llama-3.1-8b",
            "gpu": "h200-141gb",
            "calibration": "nvidia-h200",
            "engine": {
                "max_loras": 4, "max_lora_rank": 64, "max_cpu_loras": 8, "max_num_seqs": 16, "max_model_len": 2048,
                "max_num_batched_tokens": 512, "num_gpu_blocks_override": 160, "enable_prefix_caching": False, **engine,
            },
            "adapters": {
                "count": 12, "ranks": {8: 0.5, 64: 0.5}, "popularity": {"kind": "zipf", "alpha": 0.8},
                "base_fraction": 0.2,
            },
            "workload": {
                "arrivals": {"kind": "poisson", "rate_rps": 20},
                "prompt_tokens": {"kind": "lognormal", "median": 100, "sigma": 0.8, "min": 4, "max": 900},
                "output_tokens": {"kind": "lognormal", "median": 40, "sigma": 0.8, "min": 1, "max": 300},
                "duration_s": 5,
            },
            "cluster": {"replicas": 2, "router": {"kind": "lora-affinity", "scrape_s": 0.05, "delay_s": 0.02}},
        }
    )  # fmt: skip
    inputs = build_inputs(scenario)
    one, other = (simulate(inputs, coalesce=coalesce, check=True) for coalesce in (True, False))
    for field in fields(one.requests):
        if field.name not in ("first_run", "last_run"):
            a, b = getattr(one.requests, field.name), getattr(other.requests, field.name)
            assert np.array_equal(a, b, equal_nan=True) if a is not b and isinstance(a, np.ndarray) else a == b
    assert one.requests.preemptions.sum() > 0
    assert one.events <= other.events
