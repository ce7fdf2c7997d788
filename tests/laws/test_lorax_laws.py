"""LoRAX against a naive scheduler of blocking calls, coalesced against step by step, and what never changes.

All times but those of the last tests are multiples of 2**-20 s, so nothing is rounded and everything must be equal.
"""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import given

sys.path.append(str(Path(__file__).parents[1]))

from support.cases import examples
from support.compare import _none
from support.engine_laws import assert_conserves, assert_modes_agree, play
from support.fakes import FakeLatency
from support.lorax_cases import LoraxCase, Stalling, lorax_cases

from simlora.cluster.router import RoundRobin
from simlora.engines.request import Requests
from simlora.sim.clock import Clock
from simlora.sim.replica import EngineReplica
from simlora.sim.simulation import Simulation

ALL_AT_ONCE = (0, 0, 0, 1000)
WHILE_DECODING = (0, 1000, 20_000, 90_000)
AMPLE_KV = (600, 900)


def agree(case: LoraxCase, coalesce: bool = True) -> None:
    simulation = play(case.engine, case.requests(), case.latency, coalesce)
    naive = case.naive()
    jobs = naive.run(case.requests())
    for request, job in zip(simulation.requests, jobs, strict=True):
        times = [_none(t) for t in (request.admitted_s, request.first_token_s, request.last_token_s)]
        ours = request.rejected, *times, request.load_tier, request.load_s
        theirs = job.rejected, job.admitted_s, job.first_token_s, job.last_token_s, job.load_tier, job.load_s
        assert ours == theirs, request.index
    engine = simulation.replicas[0].engine
    assert engine.counters().evictions == naive.offloads
    assert engine.used_blocks() == 0 and naive.free == case.limits.kv_blocks


@examples(130)
@given(lorax_cases())
def test_as_the_naive_scheduler(case: LoraxCase) -> None:
    agree(case)


@examples(70)
@given(lorax_cases(spare_kv=AMPLE_KV, adapters=(3, 9), max_output=6, requests=20))
def test_adapters_take_turns(case: LoraxCase) -> None:
    """Memory for all requests; what binds is the budget of adapters."""
    agree(case)


@examples(70)
@given(lorax_cases(spare_kv=(0, 4), adapters=(0, 2), gaps=ALL_AT_ONCE))
def test_blocks_bind(case: LoraxCase) -> None:
    agree(case)


@examples(70)
@given(lorax_cases(spare_kv=AMPLE_KV, names=(0, 2, 5, 8), max_output=90, requests=9, gaps=WHILE_DECODING))
def test_arrivals_for_adapters_in_use_while_others_find_no_room(case: LoraxCase) -> None:
    """Rank 40 is the larger part of the budget: one of 2, 5 and 8 is active at a time."""
    agree(case)


@examples(70)
@given(lorax_cases(adapters=(0, 1), max_output=90, requests=9, gaps=WHILE_DECODING, ratios=(1.2, 2.5)))
def test_the_timer_in_long_runs(case: LoraxCase) -> None:
    agree(case)


@examples(70)
@given(lorax_cases(chunked=(True,), gaps=(0, 0, 2000, 4000), adapters=(0, 4)))
def test_chunked_prefill(case: LoraxCase) -> None:
    agree(case)


@examples(70)
@given(lorax_cases())
def test_every_plan(case: LoraxCase) -> None:
    """Not only when requests came and went: each step's requests, tokens, contexts, padded ranks and stalls."""
    planned = []

    def note(replica: EngineReplica, now_s: float) -> None:
        plan = replica._plan
        if plan is not None:
            loads_s = sum(case.latency.load_s(rank, tier) for _, rank, tier in plan.loads)
            planned.append((now_s, plan._replace(max_repeat=1, loads=(), extra_s=plan.extra_s + loads_s)))

    requests = Requests(case.requests())
    replica = EngineReplica(0, case.engine(), case.latency, requests, coalesce=False)
    replica.on_boundary = note
    Simulation(Clock(), [replica], RoundRobin(1), requests, case.latency.frontend_in_s).run()
    naive = case.naive()
    naive.run(case.requests())
    assert planned == naive.plans


@examples(130)
@given(lorax_cases())
def test_coalesced_equals_step_by_step(case: LoraxCase) -> None:
    assert_modes_agree(case.engine, case.requests, case.latency)


@examples(50)
@given(lorax_cases(latencies=(Stalling(FakeLatency()), Stalling(FakeLatency(host_s=0.0041))), max_output=60))
def test_coalesced_equals_step_by_step_with_rounded_times(case: LoraxCase) -> None:
    assert_modes_agree(case.engine, case.requests, case.latency)


@examples(50)
@given(lorax_cases(max_output=60, requests=10))
def test_coalesced_equals_step_by_step_on_replicas(case: LoraxCase) -> None:
    assert_modes_agree(case.engine, case.requests, case.latency, replicas=2, router="least-requests")


@examples(50)
@given(lorax_cases())
def test_nothing_is_lost(case: LoraxCase) -> None:
    simulation = play(case.engine, case.requests(), case.latency)
    assert_conserves(simulation)
    (replica,) = simulation.replicas
    counters = replica.engine.counters()
    lora = sum(not r.rejected and r.adapter > 0 for r in simulation.requests)
    assert sum(counters.tiers) == lora
    assert sum(counters.tiers[1:]) <= sum(counters.loads_by_rank.values())
    assert counters.preemptions == 0
