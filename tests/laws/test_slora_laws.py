"""S-LoRA: coalesced == step by step == the naive loop, bit by bit, and nothing is lost.

Step times are multiples of 2**-20 s, so that both sides add up without rounding, ties included.
"""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[1]))

from support.cases import examples
from support.engine_laws import assert_conserves, assert_modes_agree, make_requests, play
from support.fakes import FakeLatency
from support.slora_cases import LATENCIES, LIMITS, Case, adapter_units, cases

from simlora.engines.base import Capacity
from simlora.engines.request import Request
from simlora.engines.slora.admission import Admission
from simlora.engines.slora.engine import SloraEngine
from simlora.engines.slora.pool import SloraPool
from simlora.engines.slora.queues import FcfsQueue
from simlora.engines.slora.worst_case import WorstCase, newcomer, steps_refused


def agree(case: Case, coalesce: bool = True) -> None:
    simulation = play(case.engine, case.requests(), case.latency, coalesce)
    assert_conserves(simulation)
    naive = case.naive()
    jobs = naive.run(case.requests())
    ours = [
        (r.index, r.rejected, _none(r.admitted_s), _none(r.first_token_s), _none(r.last_token_s), r.load_tier)
        for r in simulation.requests
    ]
    assert ours == [(j.index, j.rejected, j.admitted_s, j.first_token_s, j.last_token_s, j.tier) for j in jobs]
    engine = simulation.replicas[0].engine
    assert isinstance(engine, SloraEngine)
    counters = engine.counters()
    assert (sum(counters.loads_by_rank.values()), counters.evictions) == (naive.loads, naive.evictions)
    assert {adapter: engine.pool.units_of(adapter) for adapter in engine.pool} == naive.held
    assert engine.used_blocks() == 0


def _none(time_s: float) -> float | None:
    return time_s if time_s == time_s else None


@examples(250)
@given(cases(policies=("fcfs",)))
def test_against_the_naive_loop(case: Case) -> None:
    agree(case)


@examples(200)
@given(cases(policies=("cluster", "abort", "vtc")))
def test_other_queues_against_the_naive_loop(case: Case) -> None:
    agree(case)


@examples(120)
@given(cases(loading=((True, True),), gaps=(0, 0, 0, 1000, 3000), requests=20))
def test_overlapped_loading_under_load(case: Case) -> None:
    agree(case)


@examples(150)
@given(cases(gaps=(0, 0, 0, 1000), max_output=150, max_prompt=10, requests=24))
def test_long_refusals(case: Case) -> None:
    agree(case)


@examples(60)
@given(cases())
def test_step_by_step_against_the_naive_loop(case: Case) -> None:
    agree(case, coalesce=False)


@examples(150)
@given(cases(), st.sampled_from((None, 0.02, 0.3)))
def test_coalesced_equals_step_by_step(case: Case, cut_s: float | None) -> None:
    assert_modes_agree(case.engine, case.requests, case.latency, cut_s=cut_s)


def test_two_arrivals_in_a_step_without_a_free_seat_wait_for_the_same_reason() -> None:
    """They come in a run that was planned with an empty queue, up to the last token of the only request."""
    rows = ((0, 0, 1, 40), (300_000, 0, 1, 1), (0, 0, 1, 1))
    case = Case(LIMITS, rows, LATENCIES[0]).with_limits(running_max_req_size=1)
    assert_modes_agree(case.engine, case.requests, case.latency)


@examples(25)
@given(st.integers(0, 1000), st.sampled_from((True, False)), st.integers(1, 2))
def test_coalesced_equals_step_by_step_with_rounded_times(seed: int, cached: bool, replicas: int) -> None:
    case = Case(LIMITS, (), LATENCIES[0]).with_limits(
        kv_units=4000, cached=cached, overlap=cached, prefetch=cached, running_max_req_size=30, batch_max_tokens=1200
    )

    def requests() -> list[Request]:
        return make_requests(60, seed, 12)

    assert_modes_agree(case.engine, requests, FakeLatency(), replicas=replicas)


@st.composite
def _refusals(draw: st.DrawFn) -> tuple[WorstCase, Request, int, int, int]:
    """Decoding requests, one that waits, the next step, the last one of the batch, and the limit."""
    size, step = draw(st.sampled_from((1, 1, 2, 3, 7))), draw(st.integers(0, 50))
    holders = draw(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=8))
    worst = WorstCase(size)
    for rest, tokens in holders:
        worst.add((-(step + rest), tokens - step - 1))
    request = Request(0, 0.0, 0, 0, draw(st.integers(1, 60)), draw(st.integers(1, 80)))
    limit = draw(st.integers(1, 8)) * 60 // size
    return worst, request, step, step + min(rest for rest, _ in holders), limit


@examples(600)
@given(_refusals())
def test_how_long_a_refusal_lasts(case: tuple[WorstCase, Request, int, int, int]) -> None:
    """The first step at which the test passes, looked for one step after the other."""
    worst, request, step, last_step, limit = case

    def passes(at: int) -> bool:
        trial = worst.copy()
        trial.add(newcomer(request, at))
        return trial.need() < limit

    first = next((at - step for at in range(step + 1, last_step + 1) if passes(at)), None)
    if not passes(step):
        assert steps_refused(worst, request, step, last_step, limit) == first


@examples(150)
@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50), st.integers(1, 4)), min_size=1, max_size=8),
    st.sampled_from((1, 2, 5)),
)
def test_the_worst_case_is_what_the_pool_will_hold(rows: list[tuple[int, int, int]], size: int) -> None:
    """Rows of (tokens now, tokens to come, rank): decode them all to the end, and look at the fullest moment."""
    worst = WorstCase(size)
    for tokens, rest, _ in rows:
        worst.add((-rest, tokens - 1))
    most = max(
        sum(-(-(tokens + step) // size) for tokens, rest, _ in rows if rest >= step)
        for step in range(max(rest for _, rest, _ in rows) + 1)
    )
    assert worst.need() == most


def test_a_pool_of_the_default_engine_is_full_of_idle_adapters_and_gives_them_back() -> None:
    """Adapters stay until keys and values want their rows, and then only as many go as needed."""
    limits = Case(LIMITS, (), None).with_limits(kv_units=100).limits
    pool = SloraPool(limits, adapter_units)
    engine = SloraEngine(limits, Capacity(100, 1, 9), adapter_units, FcfsQueue(), pool)
    for adapter in (1, 2, 3):
        request = Request(adapter, 0.0, adapter, 4, 10, 1)
        assert pool.acquire(request, float(adapter))
        pool.release(adapter, float(adapter))
    assert pool.idle() == [1, 2, 3] and pool.kv.free_units == 52
    pool.take_kv(60, 4.0)
    assert pool.idle() == [2, 3] and pool.evictions == 1
    assert engine.pool.check() is None


def test_newcomers_are_charged_for_each_adapter_once() -> None:
    nobody = WorstCase(1)
    limits = Case(LIMITS, (), None).with_limits(kv_units=80).limits
    admission = Admission(limits, adapter_units, nobody, 0, (), 0, 0)
    requests = [Request(i, 0.0, 1, 4, 10, 5) for i in range(5)]
    assert [admission.add(request) for request in requests] == [True, True, True, True, False]
    assert admission.adapter_units == 16
