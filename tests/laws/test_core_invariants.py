"""What holds in every run of the simulator core, whatever the scenario."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[1]))

from support.cases import ALONE, LATENCIES, REBUILDING, TABLES, Case, Cluster, cases, clusters, cuts, examples
from support.compare import life, row_sums
from support.fakes import (
    TICK_S,
    FakeLatency,
    RoundLatency,
    columns_of,
    make_cluster,
    make_requests,
    make_tiers,
    share_prefixes,
)

from simlora.engines.vllm.batch import VllmLimits
from simlora.engines.vllm.prefix_cache import PrefixCache
from simlora.engines.vllm.speculative import SpeculativeBatch
from simlora.scenario.load import scenario_from_dict
from simlora.scenario.lora_modules import adapter_bytes
from simlora.sim.build import build_inputs
from simlora.sim.invariants import InvariantChecker
from simlora.sim.log import STATUS_COMPLETED, STATUS_REJECTED, STATUS_UNFINISHED
from simlora.sim.log_builder import request_log, run_columns
from simlora.sim.simulate import simulate
from simlora.sim.simulation import Simulation

ROUND = (*LATENCIES.values(), *REBUILDING.values(), *TABLES.values())
ALL: tuple[Any, ...] = (*ROUND, FakeLatency())
SILENT = tuple(replace(latency, front_out=0) for latency in ROUND)
"""Tokens reach the client as they leave the engine."""


def checked(case: Case, cluster: Cluster, coalesce: bool, cut_s: float | None = None, **kw: Any) -> Simulation:
    """A run whose state is recounted at every plan."""
    checker = InvariantChecker()
    simulation = cluster.play(case, coalesce, cut_s, on_boundary=checker.check, **kw)
    checker.check_end(simulation.requests, drained=cut_s is None)
    return simulation


@examples(100)
@given(cases(latencies=ALL), clusters, st.booleans())
def test_invariants(case: Case, cluster: Cluster, coalesce: bool) -> None:
    simulation = checked(case, cluster, coalesce)
    for replica in simulation.replicas:
        assert replica.engine.kv.free == case.limits.kv_blocks
        assert not replica.engine.slots.active and not replica.engine.running and not replica.engine.waiting.size
        assert replica.outstanding == 0
        if replica.engine.slots.tiers is not None:
            replica.engine.slots.tiers.check()


@examples(100)
@given(cases(latencies=ALL), clusters, st.data())
def test_invariants_of_cut_runs(case: Case, cluster: Cluster, data: st.DataObject) -> None:
    checked(case, cluster, False, data.draw(cuts(case)))


@examples(100)
@given(cases(latencies=ALL), st.integers(1, 3), st.lists(st.integers(0, 2), min_size=16, max_size=16))
def test_invariants_with_prefix_caching(case: Case, granule_blocks: int, groups: list[int]) -> None:
    size = case.limits.block_size
    granule, checker, requests = granule_blocks * size, InvariantChecker(), case.requests()
    share_prefixes(requests, granule, groups)
    cache = lambda requests: PrefixCache(granule, size, requests)  # noqa: E731
    simulation = case.simulation(requests, cache=cache, on_boundary=checker.check)
    simulation.run()
    checker.check_end(requests, drained=True)
    kv = simulation.replicas[0].engine.kv
    assert kv.free == case.limits.kv_blocks


def speculating(case: Case, draft: int, acceptance: float, spare: int) -> tuple[Case, dict[str, Any]]:
    """The case with room for the draft tokens: in every step, and `spare` more of them in memory."""
    limits = case.limits
    budget = max(limits.max_num_batched_tokens, limits.max_num_seqs * (1 + draft))
    blocks = limits.kv_blocks + -(-spare // limits.block_size)
    case = case.with_limits(max_num_batched_tokens=budget, kv_blocks=blocks)
    return case, {"decodes": lambda: SpeculativeBatch(limits.block_size, draft, acceptance, 0)}


@examples(100)
@given(cases(latencies=ALL), st.integers(1, 4), st.sampled_from((0.0, 0.5, 1.0)))
def test_invariants_with_speculation(case: Case, draft: int, acceptance: float) -> None:
    case, kw = speculating(case, draft, acceptance, spare=draft)
    checked(case, ALONE, True, **kw)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_draft_tokens_that_do_not_fit_do_not_stall_a_request(asynchronous: bool) -> None:
    """Prompt and answer fill the memory; the draft tokens of the last steps go beyond it."""
    limits = VllmLimits(4, 64, 8, 1, 0, 16, asynchronous)
    case, kw = speculating(Case(limits, ((0, 0, 2, 7), (0, 0, 1, 1)), RoundLatency(), 0), 2, 0.0, spare=0)
    requests = checked(case, ALONE, True, **kw).requests
    assert all(r.rejected or r.last_token_s == r.last_token_s for r in requests)


# --- conservation -------------------------------------------------------------------------------------------------


def done(requests: Iterable[Any]) -> list[Any]:
    return [r for r in requests if not r.rejected]


@examples(100)
@given(cases(latencies=ALL), clusters)
def test_every_token_is_computed_once_and_again_after_a_preemption(case: Case, cluster: Cluster) -> None:
    simulation = cluster.play(case, True)
    sums = [row_sums(r) for r in simulation.replicas]
    requests = done(simulation.requests)
    prompts = sum(r.prompt_tokens + r.recomputed_tokens for r in requests)
    answers = sum(r.output_tokens - 1 for r in requests)
    assert sum(s["prefill_tokens"] + s["decoded"] for s in sums) == prompts + answers
    assert sum(r.preemptions for r in requests) == sum(r.engine.preemptions for r in simulation.replicas)


def gap_weights(case: Case) -> tuple[float, int]:
    """Tokens that the rows count as following another one, and how many do."""
    simulation = ALONE.play(case, True)
    followers = sum(r.output_tokens - 1 - len(r.interrupted) for r in done(simulation.requests))
    return row_sums(simulation.replicas[0])["gaps"], followers


@examples(100)
@given(cases(latencies=SILENT))
def test_every_token_but_the_first_ends_one_gap(case: Case) -> None:
    counted, followers = gap_weights(case.with_limits(async_scheduling=True))
    assert counted == followers


@examples(100)
@given(cases(latencies=SILENT))
def test_every_token_but_the_first_ends_one_gap_alternating(case: Case) -> None:
    counted, followers = gap_weights(case.with_limits(async_scheduling=False))
    assert counted == followers


def gap_seconds(case: Case) -> tuple[float, float]:
    """Seconds between tokens, from the rows and the interruptions, and from the requests' ends."""
    simulation = ALONE.play(case, True)
    requests = done(simulation.requests)
    spans = math.fsum(r.last_token_s - r.first_token_s for r in requests)
    return row_sums(simulation.replicas[0])["gap_s"] + math.fsum(g for r in requests for g in r.interrupted), spans


@examples(100)
@given(cases(latencies=SILENT, spare_kv=(500, 600)))
def test_gaps_add_up_to_the_time_from_first_to_last_token(case: Case) -> None:
    rows, spans = gap_seconds(case.with_limits(async_scheduling=True))
    assert rows == pytest.approx(spans, rel=1e-9, abs=1e-9)


@examples(200)
@given(cases(latencies=SILENT))
def test_gaps_over_preemptions_add_up_too(case: Case) -> None:
    rows, spans = gap_seconds(case)
    assert rows == pytest.approx(spans, rel=1e-9, abs=1e-9)


def test_the_gap_over_a_preemption_begins_with_the_last_token() -> None:
    """Its token of the step in flight comes out a step after the plan that preempted it."""
    limits = VllmLimits(2, 64, 8, 1, 0, 16, True)
    case = Case(limits, ((0, 0, 2, 7), (0, 0, 2, 4)), RoundLatency(front_out=0), 0)
    _, jobs = case.naive()
    requests = case.requests()
    case.simulation(requests).run()
    assert [r.preemptions for r in requests] == [j.preemptions for j in jobs] == [0, 1]
    times = jobs[1].token_s
    assert requests[1].interrupted == (max(b - a for a, b in pairwise(times)),)


def test_a_request_preempted_twice_in_a_row_has_both_gaps() -> None:
    """It is preempted again by the plan after its recomputed prompt, before that prompt's token came out."""
    limits = VllmLimits(8, 90, 100, 1, 0, 16, True, False, False)
    rows = ((0, 0, 1, 1), (0, 0, 1, 3), (0, 0, 34, 7), (3000, 0, 60, 30))
    case = Case(limits, rows, RoundLatency(tail=700, front_out=0), 0)
    _, jobs = case.naive()
    assert jobs[3].preemptions == 2
    between, spans = gap_seconds(case)
    assert between == pytest.approx(spans, rel=1e-9)


@examples(100)
@given(cases(latencies=SILENT), st.booleans())
def test_littles_law_over_rows(case: Case, coalesce: bool) -> None:
    """Time in the queue and in a seat, added over rows, is what the requests spent in the engine."""
    simulation = ALONE.play(case, coalesce)
    sums = row_sums(simulation.replicas[0])
    spent = math.fsum(r.last_token_s - r.routed_s for r in done(simulation.requests))
    assert sums["running_s"] + sums["waiting_s"] == pytest.approx(spent, rel=1e-9, abs=1e-9)


def host_seconds(case: Case) -> tuple[float, float]:
    """Host time by the rows of a run step by step, and by the steps that a naive engine makes."""
    naive, _ = case.naive()
    timings = [case.latency.price(plan) for _, plan in naive.plans]
    return row_sums(ALONE.play(case, False).replicas[0])["host_s"], math.fsum(t.host_s + t.sync_s for t in timings)


PLAIN: dict[str, Any] = {
    "spare_kv": (500, 600), "slots": (7, 7), "adapters": (1, 6), "pinned": (0, 0), "seats": (20, 20),
}  # fmt: skip


@examples(60)
@given(cases(latencies=tuple(LATENCIES.values()), **PLAIN))
def test_rows_book_the_host_time_of_their_steps(case: Case) -> None:
    booked, spent = host_seconds(case)
    assert booked == pytest.approx(spent, rel=1e-9)


@examples(60)
@given(cases(latencies=tuple(REBUILDING.values()), **PLAIN))
def test_rows_book_the_host_time_of_their_steps_when_a_change_costs_more(case: Case) -> None:
    booked, spent = host_seconds(case)
    assert booked == pytest.approx(spent, rel=1e-9)


@examples(60)
@given(cases(latencies=ROUND, **PLAIN))
def test_rows_book_the_gpu_time_of_their_steps(case: Case) -> None:
    naive, _ = case.naive()
    timings = [case.latency.price(plan) for _, plan in naive.plans]
    rows = run_columns(ALONE.play(case, False).replicas[0].log)
    for name in ("base_s", "attention_s", "lora_s", "collective_s", "load_s"):
        assert math.fsum(rows[name] * rows["steps"]) == pytest.approx(math.fsum(getattr(t, name) for t in timings))


@examples(100)
@given(cases(latencies=ALL), clusters, st.one_of(st.none(), st.integers(0, 1_000_000)))
def test_nothing_is_nan_or_infinite(case: Case, cluster: Cluster, cut: int | None) -> None:
    """In the rows; requests have NaN exactly where nothing happened."""
    cut_s = None if cut is None else cut * TICK_S
    simulation = cluster.play(case, False, cut_s)
    for replica in simulation.replicas:
        for name, column in run_columns(replica.log).items():
            assert np.isfinite(column).all(), name
            if not name.startswith("waiting"):
                assert (column >= 0).all(), name
    log = request_log(simulation.requests, math.inf if cut_s is None else cut_s)
    completed, rejected = log.status == STATUS_COMPLETED, log.status == STATUS_REJECTED
    unfinished = log.status == STATUS_UNFINISHED
    assert (completed.astype(int) + rejected + unfinished == 1).all()
    assert np.isfinite(log.last_token_s[completed]).all() and np.isnan(log.last_token_s[~completed]).all()
    assert np.isnan(log.admitted_s[rejected]).all()
    if cut_s is None:
        assert not unfinished.any()


# --- rejection and determinism ------------------------------------------------------------------------------------


@examples(100)
@given(cases(latencies=ALL, requests=8), st.integers(0, 8), st.integers(1, 3))
def test_what_can_never_fit_is_rejected_and_nobody_else_notices(case: Case, position: int, adapter: int) -> None:
    """Not for lack of memory now: only what does not fit into an empty engine."""
    giant = (0, adapter if case.limits.max_loras else 0, case.limits.kv_blocks * case.limits.block_size, 2)
    rows = (*case.rows[:position], giant, *case.rows[position:])
    where = min(position, len(case.rows))
    alone, disturbed = case.requests(), replace(case, rows=rows).requests()
    case.simulation(alone).run()
    replace(case, rows=rows).simulation(disturbed).run()
    others = list(disturbed)
    giant_request = others.pop(where)
    assert giant_request.rejected and math.isnan(giant_request.admitted_s)
    for one, other in zip(alone, others, strict=True):
        assert not one.rejected
        assert life(one)[1:] == life(other)[1:]


def test_the_largest_request_that_fits_is_served() -> None:
    for output in (1, 2, 17):
        limits = VllmLimits(4, 64, 10, 16, 0, 16, True)
        case = Case(limits, ((0, 0, 161 - output, output), (0, 0, 162 - output, output)), RoundLatency(), 0)
        requests = case.requests()
        case.simulation(requests).run()
        assert [r.rejected for r in requests] == [False, True]
        assert requests[0].last_token_s > 0


@examples(40)
@given(cases(latencies=ALL), clusters)
def test_the_same_run_twice_is_the_same(case: Case, cluster: Cluster) -> None:
    one, other = (cluster.play(case, True) for _ in range(2))
    assert [life(r) for r in one.requests] == [life(r) for r in other.requests]
    for a, b in zip(one.replicas, other.replicas, strict=True):
        rows = run_columns(a.log), run_columns(b.log)
        assert all(rows[0][name].tobytes() == rows[1][name].tobytes() for name in rows[0])


# --- adapters -----------------------------------------------------------------------------------------------------


def next_plan_s(simulation: Simulation, request: Any) -> float:
    """When the first plan after the request's arrival was made, from the rows of a run step by step."""
    rows = run_columns(simulation.replicas[request.replica].log)
    ends = rows["start_s"] + rows["first_gap_s"]
    busy = (rows["start_s"] <= request.routed_s) & (request.routed_s < ends)
    return float(ends[busy][0]) if busy.any() else request.routed_s


FREE: dict[str, Any] = {"spare_kv": (900, 999), "seats": (20, 20), "gaps": (0, 1000, 9000), "adapters": (4, 8)}
"""Only slots are scarce."""


@examples(100)
@given(cases(latencies=ROUND, slots=(2, 3), pinned=(1, 2), **FREE))
def test_a_pinned_adapter_never_waits_for_a_slot_or_a_load(case: Case) -> None:
    case = case.with_limits(max_num_batched_tokens=2000)
    simulation = ALONE.play(case, False)
    for request in simulation.requests:
        if request.adapter in case.limits.pinned:
            assert request.admitted_s <= next_plan_s(simulation, request) + 1e-12
            assert (request.load_tier, request.load_s) == (0, 0.0)


@examples(100)
@given(cases(latencies=ROUND, slots=(1, 2), **FREE))
def test_base_traffic_never_waits_for_a_slot(case: Case) -> None:
    case = case.with_limits(max_num_batched_tokens=2000)
    simulation = ALONE.play(case, False)
    for request in simulation.requests:
        if not request.adapter:
            assert request.admitted_s <= next_plan_s(simulation, request) + 1e-12


def test_more_slots_never_mean_more_waiting_for_slots() -> None:
    """Request-seconds spent waiting for a slot, from 1 slot to one for every adapter."""
    waited = []
    for slots in range(1, 11):
        limits = VllmLimits(64, 512, 4000, 16, slots, 16, True)
        requests = columns_of(make_requests(120, 5, adapters=10, rate_rps=30, max_prompt=200, max_output=60))
        simulation = make_cluster(requests, limits, lambda limits=limits: make_tiers(limits, host=10))
        simulation.run()
        waited.append(row_sums(simulation.replicas[0])["waiting_slots_s"])
    assert waited == sorted(waited, reverse=True)
    assert waited[0] > 10 and waited[-1] == 0


def order_and_times(case: Case, slots: int) -> list[tuple[object, ...]]:
    changed = replace(case, host=max(case.host, slots)).with_limits(max_loras=slots)
    requests = changed.requests()
    changed.simulation(requests).run()
    return [life(r) for r in requests]


@examples(100)
@given(cases(latencies=ROUND, adapters=(0, 0), spare_kv=(500, 600)), st.integers(1, 4))
def test_lora_that_nobody_uses_changes_nothing(case: Case, slots: int) -> None:
    assert order_and_times(case, slots) == order_and_times(case, 0)


@examples(200)
@given(cases(latencies=ROUND, adapters=(0, 0), seats=(2, 3), spare_kv=(0, 6)), st.integers(1, 4))
def test_lora_that_nobody_uses_changes_nothing_under_memory_pressure(case: Case, slots: int) -> None:
    assert order_and_times(case, slots) == order_and_times(case, 0)


@examples(60)
@given(cases(latencies=ROUND, adapters=(1, 6), slots=(7, 7), pinned=(0, 0)))
def test_with_a_slot_for_every_adapter_loads_come_once(case: Case) -> None:
    simulation = ALONE.play(case, True)
    engine = simulation.replicas[0].engine
    loads = sum(engine.slots.tier_counts[1:])
    served = {r.adapter for r in done(simulation.requests) if r.adapter}
    assert loads == len(served)
    assert engine.slots.evictions == 0


@examples(60)
@given(cases(latencies=ROUND, adapters=(2, 6)))
def test_a_remote_adapter_is_fetched_once(case: Case) -> None:
    assume(case.limits.max_loras)
    simulation = ALONE.play(replace(case, remote=True), True)
    counts = simulation.replicas[0].engine.slots.tier_counts
    served = {r.adapter for r in done(simulation.requests) if r.adapter} - case.limits.pinned
    assert counts[3] == len(served)


def test_every_load_is_booked_in_bytes() -> None:
    """Two slots, six adapters, little memory: some requests come back to an adapter that had to leave meanwhile."""
    scenario = scenario_from_dict(
        {
            "seed": 0, "model": "llama-3.1-8b", "gpu": "h200-141gb", "calibration": "nvidia-h200",
            "engine": {
                "max_loras": 2, "max_lora_rank": 8, "max_cpu_loras": 2, "max_num_seqs": 16, "max_model_len": 400,
                "max_num_batched_tokens": 512, "num_gpu_blocks_override": 41, "enable_prefix_caching": False,
            },
            "adapters": {"count": 6, "ranks": 8},
            "workload": {
                "arrivals": {"kind": "poisson", "rate_rps": 3}, "duration_s": 10,
                "prompt_tokens": {"kind": "uniform", "min": 20, "max": 200},
                "output_tokens": {"kind": "uniform", "min": 20, "max": 200},
            },
        }
    )  # fmt: skip
    replica = simulate(build_inputs(scenario)).replicas[0]
    loads = replica.host_hits + replica.disk_loads + replica.remote_loads
    assert replica.preemptions > 0
    assert replica.load_bytes == loads * adapter_bytes(scenario.model_spec, 8, scenario.adapter_modules)
