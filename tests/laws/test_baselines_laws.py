"""The baselines against plain twins, coalesced against step by step, and what each promises."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[1]))

from support.cases import LATENCIES, REBUILDING, examples
from support.compare import row_sums
from support.engine_laws import assert_conserves, assert_modes_agree, play
from support.fakes import TICK_S, FakeLatency, RoundLatency, requests_of_rows
from support.naive_baselines import NaiveBaseline, Task

from simlora.engines.baselines.base import BaselineEngine, BaselineLimits
from simlora.engines.baselines.grouped import GroupedEngine
from simlora.engines.baselines.merged_swap import MergedSwapEngine
from simlora.engines.baselines.sequential import SequentialEngine
from simlora.engines.request import Request
from simlora.latency.step import StepPlan, StepTiming
from simlora.memory.residents import ResidentSet

KINDS = ("sequential", "grouped", "merged-swap")


@dataclass(frozen=True)
class SwitchLatency(RoundLatency):
    """Switches of the merged adapter come before the step."""

    def price(self, plan: StepPlan) -> StepTiming:
        timing = super().price(plan)
        return timing._replace(load_s=timing.load_s + plan.extra_s)

    def merge_s(self, rank: int, old_rank: int) -> float:
        return (1000 * (rank > 0) + 500 * (old_rank > 0)) * TICK_S


LATENCY = tuple(SwitchLatency(**vars(v)) for v in (*LATENCIES.values(), *REBUILDING.values()))


@dataclass(frozen=True)
class Trial:
    """One baseline and its requests: rows of (gap in ticks, adapter, prompt, output)."""

    kind: str
    limits: BaselineLimits
    slots: int
    pinned: frozenset[int]
    rows: tuple[tuple[int, int, int, int], ...]
    latency: Any

    def requests(self) -> list[Request]:
        return requests_of_rows(self.rows)

    def engine(self) -> BaselineEngine:
        slots = ResidentSet(self.slots, pinned=self.pinned)
        for adapter in sorted(self.pinned):
            slots.add(adapter, 0.0)
        if self.kind == "merged-swap":
            return MergedSwapEngine(self.limits, slots, SwitchLatency().merge_s)
        return {"sequential": SequentialEngine, "grouped": GroupedEngine}[self.kind](self.limits, slots)

    def naive(self) -> tuple[NaiveBaseline, list[Task]]:
        naive = NaiveBaseline(self.kind, self.limits, self.slots, self.pinned, self.latency)
        return naive, naive.run(self.requests())


@st.composite
def trials(draw: st.DrawFn, kinds: tuple[str, ...] = KINDS) -> Trial:
    kind, count = draw(st.sampled_from(kinds)), draw(st.integers(1, 6))
    gap = st.sampled_from((0, 0, 1000, 3000, 8000, 40_000, 400_000))
    output = st.one_of(st.just(1), st.integers(1, 30))
    row = st.tuples(gap, st.integers(0, count), st.integers(1, 60), output)
    rows = tuple(draw(st.lists(row, min_size=1, max_size=16)))
    block_size = draw(st.sampled_from((1, 4, 16)))
    slots = 1 if kind == "merged-swap" else draw(st.integers(1, 4))
    fixed = draw(st.integers(0, min(slots - 1, count)))
    longest = max(prompt + output for _, _, prompt, output in rows)
    limits = BaselineLimits(
        max_num_seqs=draw(st.integers(1, 8)),
        max_num_batched_tokens=draw(st.integers(40, 120)),
        kv_blocks=-(-longest // block_size) + draw(st.integers(-2, 12)),
        block_size=block_size,
        switch_after=draw(st.sampled_from((1, 2, 3, 30))),
    )
    latency = draw(st.sampled_from(LATENCY))
    if draw(st.booleans()):
        latency = replace(latency, valid_steps=draw(st.integers(1, 5)))
    limits = replace(limits, kv_blocks=max(limits.kv_blocks, 1))
    return Trial(kind, limits, slots, frozenset(range(1, fixed + 1)), rows, latency)


def times(requests: list[Request]) -> list[tuple[object, ...]]:
    return [
        (r.index, r.rejected, *map(_none, (r.admitted_s, r.first_token_s, r.last_token_s)), r.load_tier)
        for r in requests
    ]


def _none(time_s: float) -> float | None:
    return None if time_s != time_s else time_s


@examples(300)
@given(trials(), st.booleans())
def test_as_the_plain_twin(trial: Trial, coalesce: bool) -> None:
    simulation = play(trial.engine, trial.requests(), trial.latency, coalesce)
    naive, tasks = trial.naive()
    expected = [
        (t.index, t.rejected, t.admitted_s, t.first_token_s, t.last_token_s, t.load_tier) for t in tasks
    ]  # fmt: skip
    assert times(list(simulation.requests)) == expected
    assert simulation.replicas[0].engine.counters().evictions == naive.evictions
    assert_conserves(simulation)


@examples(200)
@given(trials(), st.integers(1, 3))
def test_coalesced_as_step_by_step(trial: Trial, replicas: int) -> None:
    assert_modes_agree(trial.engine, trial.requests, trial.latency, replicas=replicas, router="least-requests")


@examples(60)
@given(trials())
def test_coalesced_as_step_by_step_with_rounded_times(trial: Trial) -> None:
    assert_modes_agree(trial.engine, trial.requests, FakeLatency())


@examples(100)
@given(trials())
def test_every_token_is_computed_once(trial: Trial) -> None:
    simulation = play(trial.engine, trial.requests(), trial.latency)
    sums = row_sums(simulation.replicas[0])
    served = [r for r in simulation.requests if not r.rejected]
    assert sums["prefill_tokens"] == sum(r.prompt_tokens for r in served)
    assert sums["decoded"] == sum(r.output_tokens - 1 for r in served)


@examples(100)
@given(trials(("sequential",)))
def test_sequential_admits_in_the_order_of_arrival(trial: Trial) -> None:
    served = [r for r in play(trial.engine, trial.requests(), trial.latency).requests if not r.rejected]
    admitted = [r.admitted_s for r in served]
    assert admitted == sorted(admitted)


@examples(100)
@given(trials(("grouped", "merged-swap")))
def test_one_adapter_at_a_time(trial: Trial) -> None:
    """Nobody is admitted while a request of another adapter still has tokens to come."""
    served = [r for r in play(trial.engine, trial.requests(), trial.latency).requests if not r.rejected]
    out_s = trial.latency.frontend_out_s(0)
    for one in served:
        for other in served:
            if one.adapter != other.adapter and one.admitted_s <= other.admitted_s:
                assert other.admitted_s >= one.last_token_s - out_s - 1e-12


@examples(100)
@given(trials(("grouped", "merged-swap")))
def test_the_switch_rule_bounds_who_is_overtaken(trial: Trial) -> None:
    """A request that came behind switch_after waiting ones of others is not admitted before all of them."""
    requests = play(trial.engine, trial.requests(), trial.latency).requests
    served = [r for r in requests if not r.rejected]
    for late in served:
        waiting = [r for r in served if r.routed_s < late.routed_s < r.admitted_s and r.adapter != late.adapter]
        if len(waiting) >= trial.limits.switch_after and trial.limits.max_num_batched_tokens >= 120:
            assert late.admitted_s >= min(r.admitted_s for r in waiting)
