"""Stages for the latency models of tests, and pipelines built from bare limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from support.cases import Case
from support.fakes import TICK_S, FakeLatency, RoundLatency
from support.naive_pipeline import Job, NaivePipeline
from support.naive_tiers import NaiveTiers

from simlora.cluster.router import RoundRobin
from simlora.engines.request_columns import RequestColumns
from simlora.engines.vllm.lanes import PipelineScheduler
from simlora.engines.vllm.pipeline import PipelineReplica
from simlora.engines.vllm.prefix_cache import PrefixCache
from simlora.latency.overlap import PipelineTiming
from simlora.latency.step import StepPlan, StepTiming
from simlora.sim.clock import Clock
from simlora.sim.invariants import InvariantChecker
from simlora.sim.simulation import Simulation

SIXTEENTHS = {1: (16,), 2: (9, 7), 3: (5, 6, 5), 4: (3, 5, 4, 4)}
"""Shares of the stages: dyadic, so that round times stay round."""


@dataclass(frozen=True)
class StagedLatency:
    """Spreads the steps of another latency model over stages; the later ones have a quarter of the host's time."""

    latency: RoundLatency | FakeLatency
    stages: int
    transfer: int = 300
    """Ticks."""

    @property
    def frontend_in_s(self) -> float:
        return self.latency.frontend_in_s

    def price(self, plan: StepPlan) -> StepTiming:
        return self.latency.price(plan)

    def price_stages(self, plan: StepPlan) -> PipelineTiming:
        whole = self.latency.price(plan)
        if self.stages == 1:
            return PipelineTiming((whole,), 0.0)
        return PipelineTiming(
            tuple(_part(whole, share, index == 0) for index, share in enumerate(SIXTEENTHS[self.stages])),
            self.transfer * TICK_S,
        )

    def load_s(self, rank: int, tier: str) -> float:
        return self.latency.load_s(rank, tier)

    def frontend_out_s(self, running: float) -> float:
        return self.latency.frontend_out_s(running)


def _part(whole: StepTiming, share: int, first: bool) -> StepTiming:
    host = 1.0 if first else 0.25
    part = share / 16
    return whole._replace(
        host_s=whole.host_s * host, sync_s=whole.sync_s * host, repeat_host_s=whole.repeat_host_s * host,
        load_s=whole.load_s * part, base_s=whole.base_s * part, attention_s=whole.attention_s * part,
        lora_s=whole.lora_s * part, tail_s=whole.tail_s * part,
    )  # fmt: skip


def make_pipeline(
    case: Case,
    stages: int,
    requests: RequestColumns,
    on_boundary: Callable[[Any, float], None] | None = None,
    cache: Callable[[RequestColumns], PrefixCache | None] = lambda requests: None,
    latency: Any = None,
    **simulation: Any,
) -> Simulation:
    """One replica of a case with that many stages, its invariants checked at every plan."""
    clock, checker = Clock(), InvariantChecker()
    engine = PipelineScheduler(case.limits, requests, case.tiers(), stages, cache(requests))
    latency = latency or StagedLatency(case.latency, stages)
    replica = PipelineReplica(0, engine, latency)

    def check(replica: Any, now_s: float) -> None:
        checker.check(replica, now_s)
        if on_boundary is not None:
            on_boundary(replica, now_s)

    replica.on_boundary = check
    return Simulation(clock, [replica], RoundRobin(1), requests, latency.frontend_in_s, **simulation)


def play_pipeline(case: Case, stages: int, **kw: Any) -> Simulation:
    """The whole life of a case's requests."""
    simulation = make_pipeline(case, stages, case.requests(), **kw)
    simulation.run()
    return simulation


def play_naively(case: Case, stages: int, latency: Any = None) -> tuple[NaivePipeline, list[Job]]:
    """The same through the naive pipeline."""
    limits = case.limits
    tiers = NaiveTiers(limits.max_loras, case.host, limits.pinned, case.remote) if limits.max_loras else None
    naive = NaivePipeline(limits, latency or StagedLatency(case.latency, stages), tiers, stages)
    return naive, naive.run(case.requests())
