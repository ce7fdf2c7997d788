"""Random small cases for S-LoRA: little memory, many adapters, so that every limit binds now and then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st
from support.fakes import TICK_S, RoundLatency, requests_of_rows
from support.naive_slora import NaiveSlora, Policy

from simlora.engines.base import Capacity
from simlora.engines.overlap_loading import OverlapLoading
from simlora.engines.request import Request
from simlora.engines.slora.abort import AbortQueue
from simlora.engines.slora.admission import SloraLimits
from simlora.engines.slora.engine import SloraEngine
from simlora.engines.slora.fair import FairQueue
from simlora.engines.slora.pool import SloraPool
from simlora.engines.slora.queues import ClusterQueue, FcfsQueue, SloraQueue
from simlora.latency.step import StepPlan, StepTiming
from simlora.memory.copies import CopyEngine, Stage

RANKS = (1, 2, 4)
FCFS = Policy()
FAST, SLOW = 64.0, 2.0
"""Bytes of copies in a tick: a step takes a few thousand ticks, a copy at least 2**10, or 2**15."""


@dataclass(frozen=True)
class SideLatency(RoundLatency):
    """Steps take longer while adapters are copied beside them."""

    beside: int = 512

    def price(self, plan: StepPlan) -> StepTiming:
        timing = super().price(plan)
        return timing._replace(base_s=timing.base_s + self.beside * TICK_S) if plan.copying else timing


def adapter_units(rank: int) -> int:
    return 4 * rank


def stages(rank: int) -> tuple[Stage, ...]:
    """Copies of a few thousand ticks alone."""
    return (Stage("host", rank * 2.0**16, 256 * TICK_S),)


def make_copies(bytes_per_tick: float) -> CopyEngine:
    return CopyEngine({"host": bytes_per_tick / TICK_S})


@dataclass(frozen=True)
class Case:
    """One engine and its requests: rows of (gap to the arrival before in ticks, adapter, prompt, output)."""

    limits: SloraLimits
    rows: tuple[tuple[int, int, int, int], ...]
    latency: Any
    policy: Policy = FCFS
    bytes_per_tick: float = FAST

    def requests(self) -> list[Request]:
        return requests_of_rows(self.rows, lambda adapter: RANKS[adapter % len(RANKS)] if adapter else 0)

    def queue(self) -> SloraQueue:
        makers: dict[str, Callable[[], SloraQueue]] = {
            "fcfs": FcfsQueue,
            "cluster": lambda: ClusterQueue(int(self.policy.more)),
            "abort": lambda: AbortQueue(self.policy.more),
            "vtc": FairQueue,
        }
        return makers[self.policy.name]()

    def engine(self) -> SloraEngine:
        copies = None
        if self.limits.overlap:
            copies = OverlapLoading(make_copies(self.bytes_per_tick), lambda rank, tier: stages(rank))
        pool = SloraPool(self.limits, adapter_units, copies)
        capacity = Capacity(self.limits.kv_units, self.limits.unit_tokens, 1 << 20)
        return SloraEngine(self.limits, capacity, adapter_units, self.queue(), pool)

    def naive(self) -> NaiveSlora:
        side = (make_copies(self.bytes_per_tick), stages) if self.limits.overlap else ()
        return NaiveSlora(self.limits, adapter_units, self.policy, self.latency, *side)

    def with_limits(self, **changes: object) -> Case:
        return replace(self, limits=replace(self.limits, **changes))  # type: ignore[arg-type]


LIMITS = SloraLimits(
    kv_units=200,
    unit_tokens=1,
    adapter_units=0,
    unified=True,
    cached=True,
    charged=True,
    overlap=False,
    prefetch=False,
    running_max_req_size=8,
    batch_max_tokens=100,
    idle_s=2.0**-7,
)

LATENCIES = (
    SideLatency(),
    SideLatency(host=9000),
    SideLatency(context=40),
    SideLatency(rebuild=2500, sync=500),
    SideLatency(tail=700),
    SideLatency(host=2000, host_request=0, gpu=4000, gpu_request=0, gpu_adapter=0, token=0, context=0, front_in=0),
)
POLICIES = ("fcfs", "cluster", "abort", "vtc")


@st.composite
def cases(
    draw: st.DrawFn,
    policies: tuple[str, ...] = POLICIES,
    loading: tuple[tuple[bool, bool], ...] = ((False, False), (True, False), (True, True)),
    unit_tokens: tuple[int, ...] = (1, 1, 2, 5),
    requests: int = 16,
    max_output: int = 40,
    max_prompt: int = 40,
    gaps: tuple[int, ...] = (0, 0, 1000, 3000, 8000, 40_000, 400_000),
) -> Case:
    """Memory for about one to six requests; now and then a request that does not fit at all."""
    count = draw(st.integers(0, 8))
    output = st.one_of(st.just(1), st.integers(1, max_output))
    row = st.tuples(st.sampled_from(gaps), st.integers(0, count), st.integers(1, max_prompt), output)
    rows = draw(st.lists(row, min_size=1, max_size=requests))
    size, unified = draw(st.sampled_from(unit_tokens)), draw(st.sampled_from((True, True, False)))
    cached, (overlap, prefetch) = draw(st.booleans()), draw(st.sampled_from(loading))
    limits = SloraLimits(
        kv_units=draw(st.integers(60, 260)) // size + 16,
        unit_tokens=size,
        adapter_units=draw(st.integers(16, 40)) if not unified else draw(st.sampled_from((0, 0, 20))),
        unified=unified,
        cached=cached,
        charged=unified or not cached,
        overlap=overlap,
        prefetch=prefetch,
        running_max_req_size=draw(st.sampled_from((1, 2, 4, 8, 8, 20))),
        batch_max_tokens=draw(st.integers(40, 120)),
        idle_s=2.0**-7,
    )
    policy = draw(st.sampled_from(policies))
    more = {"cluster": draw(st.integers(1, 3)), "abort": draw(st.sampled_from((0.51, 0.55, 0.8)))}.get(policy, 0)
    latency = draw(st.sampled_from(LATENCIES))
    if draw(st.booleans()):
        latency = replace(latency, valid_steps=draw(st.integers(1, 5)))
    return Case(limits, tuple(rows), latency, Policy(policy, more), draw(st.sampled_from((FAST, FAST, SLOW))))
