"""Pipeline stages: lanes and stages against a loop over lists, one stage against the plain engine, conservation.

All times are multiples of 2**-20 s, so both sides must agree to the last bit.
"""

from __future__ import annotations

import math
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[1]))

from support.cases import LATENCIES, REBUILDING, Case, cases, cuts, examples
from support.compare import life, played, played_naively, row_sums, same_sums
from support.engine_laws import assert_conserves
from support.fakes import FakeLatency, share_prefixes
from support.staged import make_pipeline, play_naively, play_pipeline

from simlora.engines.vllm.pipeline import PipelineReplica
from simlora.engines.vllm.prefix_cache import PrefixCache
from simlora.results.measured import Measured, gap_segments
from simlora.results.timeline import Timeline
from simlora.results.token_gaps import token_gaps
from simlora.sim.log import SimulationLog
from simlora.sim.log_builder import replica_log, request_log
from simlora.sim.simulation import Simulation

ALL = (*LATENCIES.values(), *REBUILDING.values())
STAGES = st.sampled_from((1, 2, 3, 4))


def agree(case: Case, stages: int) -> None:
    simulation = play_pipeline(case, stages)
    naive, jobs = play_naively(case, stages)
    assert played(simulation.requests) == played_naively(jobs)
    engine = simulation.replicas[0].engine
    assert engine.slots.evictions == naive.evictions
    assert engine.kv.free == naive.free == case.limits.kv_blocks


@examples(160)
@given(cases(latencies=ALL, spare_kv=(400, 600)), STAGES)
def test_with_memory_for_all(case: Case, stages: int) -> None:
    agree(case, stages)


@examples(230)
@given(cases(latencies=ALL, seats=(2, 8), requests=10), STAGES)
def test_with_preemptions(case: Case, stages: int) -> None:
    agree(case, stages)


@examples(160)
@given(cases(latencies=ALL, spare_kv=(400, 600), seats=(4, 20), adapters=(3, 9), slots=(1, 3), max_output=6), STAGES)
def test_many_adapters_in_few_slots(case: Case, stages: int) -> None:
    agree(case, stages)


@examples(100)
@given(cases(latencies=ALL, adapters=(0, 0), spare_kv=(0, 60), seats=(8, 20), gaps=(0, 0, 2000, 4000)), STAGES)
def test_bursts_without_lora(case: Case, stages: int) -> None:
    agree(case, stages)


@examples(130)
@given(cases(latencies=ALL, seats=(2, 8), requests=10), STAGES)
def test_every_plan(case: Case, stages: int) -> None:
    """Not only when requests came and went: each batch's requests, tokens, contexts, adapters and loads."""
    planned = []

    def note(replica: PipelineReplica, now_s: float) -> None:
        planned.append((now_s, replica.flights[-1].plan._replace(skipped=0)))

    play_pipeline(case, stages, on_boundary=note)
    naive, _ = play_naively(case, stages)
    assert planned == [(now_s, plan._replace(skipped=0)) for now_s, plan in naive.plans]


@examples(130)
@given(cases(latencies=ALL, seats=(2, 8)))
def test_one_stage_is_the_plain_engine(case: Case) -> None:
    """Bit for bit, rows included."""
    case = case.with_limits(async_scheduling=False)
    piped, plain = play_pipeline(case, 1), case.simulation(case.requests(), coalesce=False)
    plain.run()
    assert [life(r) for r in piped.requests] == [life(r) for r in plain.requests]
    (one,), (other,) = piped.replicas, plain.replicas
    assert one.engine.counters() == other.engine.counters()
    assert same_sums(row_sums(one), row_sums(other)) == []


@examples(100)
@given(cases(latencies=(*ALL, FakeLatency()), seats=(2, 20)), STAGES, st.integers(1, 3), st.lists(st.integers(0, 3)))
def test_conservation_with_prefix_caching(case: Case, stages: int, granule_blocks: int, groups: list[int]) -> None:
    """Prompts begin alike within a group; invariants are checked at every plan."""
    requests, size = case.requests(), case.limits.block_size
    share_prefixes(requests, granule_blocks * size, groups)
    cache = lambda requests: PrefixCache(granule_blocks * size, size, requests)  # noqa: E731
    simulation = make_pipeline(case, stages, requests, cache=cache)
    simulation.run()
    assert_conserves(simulation)


@examples(100)
@given(cases(latencies=ALL, spare_kv=(400, 600), seats=(2, 20)), STAGES)
def test_token_gaps_of_the_log(case: Case, stages: int) -> None:
    """Rows, lanes and gaps of the log tell every gap between two tokens, in sum and request by request."""
    simulation = play_pipeline(case, stages)
    _, jobs = play_naively(case, stages)
    measured = Measured(log_of(simulation))
    gaps = [np.diff(job.token_s) for job in jobs]
    segments = gap_segments(measured)
    assert sorted(np.repeat(segments.first_s, segments.weight.astype(int))) == sorted(np.concatenate(gaps))
    largest, median = token_gaps(measured)
    for job, own in zip(jobs, gaps, strict=True):
        if len(own):
            assert (largest[job.index], median[job.index]) == (own.max(), np.median(own))


@examples(60)
@given(cases(latencies=ALL, seats=(2, 8)), STAGES)
def test_rows_and_stages(case: Case, stages: int) -> None:
    """Rows follow one another; a stage computes one batch at a time, and all of them are busy less than always."""
    simulation = play_pipeline(case, stages)
    naive, _ = play_naively(case, stages)
    timeline = Timeline(log_of(simulation).replicas[0])
    assert np.all(timeline.start_s[1:] >= timeline.end_s[:-1])
    assert float(np.sum(timeline.gpu_s)) <= simulation.end_s
    for spans in naive.busy:
        assert all(end_s <= start_s for (_, end_s), (start_s, _) in pairwise(spans))
    assert naive.largest_queue <= stages
    for parts in timeline.parts.values():
        assert np.all(np.minimum(*parts) >= -1e-12)


def log_of(simulation: Simulation) -> SimulationLog:
    (replica,) = simulation.replicas
    logs = (replica_log(replica, False, 1, 0, 0.0),)
    scenario = SimpleNamespace(workload=SimpleNamespace(warmup_s=0.0))
    return SimulationLog(scenario, request_log(simulation.requests, math.inf), logs, simulation.end_s, {}, {})


@examples(60)
@given(cases(latencies=ALL, spare_kv=(20, 100)), STAGES, st.data())
def test_cut_runs(case: Case, stages: int, data: st.DataObject) -> None:
    """Nothing happens after the cut, and what happened before it is what happens without one."""
    cut_s = data.draw(cuts(case))
    requests = case.requests()
    simulation = make_pipeline(case, stages, requests, cut_s=cut_s)
    simulation.run()
    for cut, whole in zip(requests, play_pipeline(case, stages).requests, strict=True):
        for name in ("routed_s", "admitted_s", "first_token_s", "last_token_s"):
            time_s, full_s = getattr(cut, name), getattr(whole, name)
            assert time_s == full_s or time_s != time_s
            assert time_s == full_s or not full_s < cut_s
    timeline = Timeline(log_of(simulation).replicas[0])
    assert not len(timeline.end_s) or timeline.end_s[-1] <= cut_s
