"""Latency models of round numbers, and a cluster built from bare limits, for tests of scheduling."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from simlora.cluster.router import LeastRequests, LoraAffinity, RoundRobin, Router
from simlora.engines.decode_batch import DecodeBatch
from simlora.engines.request import Request
from simlora.engines.request_columns import RequestColumns
from simlora.engines.vllm.batch import VllmLimits
from simlora.engines.vllm.prefix_cache import PrefixCache
from simlora.engines.vllm.replica import VllmReplica
from simlora.engines.vllm.scheduler import VllmScheduler
from simlora.latency.step import StepPlan, StepTiming
from simlora.latency.step_latency import PriceTable
from simlora.memory.residents import AdapterTiers, ResidentSet
from simlora.sim.clock import Clock
from simlora.sim.simulation import Simulation

UNBOUNDED = 1 << 40
TICK_S = 2.0**-20
"""Time unit of RoundLatency. Times that are small multiples of it add up without rounding, in any order."""


@dataclass(frozen=True)
class FakeLatency:
    """Decode steps are graphs of 5 ms + context; prefill steps are launch bound. Sums of its times are rounded."""

    valid_steps: int = UNBOUNDED
    host_s: float = 0.002
    frontend_in_s: float = 0.001

    def price(self, plan: StepPlan) -> StepTiming:
        load_s = sum(self.load_s(rank, tier) for _, rank, tier in plan.loads)
        host = self.host_s + 1e-5 * plan.num_requests
        lora = 0.001 * (plan.num_adapters > 0) + 1e-4 * plan.num_adapters
        attention = 3e-8 * plan.decode_context_tokens
        if plan.prefills:
            base = 0.004 + 2e-5 * plan.num_tokens
            return StepTiming(host + 0.01, load_s, base, attention, lora, 0.0, 0.0, True, 0.001, 1)
        base, slope = 0.004 + 1e-5 * plan.decode_count, 3e-8 * plan.decode_count * plan.emitted_per_step
        return StepTiming(host, load_s, base, attention, lora, 0.0, slope, False, 0.0, self.valid_steps)

    def load_s(self, rank: int, tier: str) -> float:
        return {"gpu": 0.0, "host": 0.02, "disk": 0.2, "remote": 0.5}[tier]

    def frontend_out_s(self, running: float) -> float:
        return 0.002 + 1e-5 * running


@dataclass(frozen=True)
class RoundLatency:
    """Step times in multiples of TICK_S, so that no sum of them is rounded. All fields count ticks."""

    host: int = 2000
    host_request: int = 10
    rebuild: int = 0
    """Extra host time of a step whose batch changed."""
    sync: int = 0
    """Host time after the read-back, in a step whose batch changed."""
    gpu: int = 4000
    gpu_request: int = 16
    gpu_adapter: int = 100
    token: int = 20
    """Of a prompt."""
    context: int = 1
    """Attention per token of context."""
    tail: int = 0
    """Above 0, every step is launched kernel by kernel; prefill steps always are."""
    valid_steps: int = UNBOUNDED
    front_in: int = 1000
    front_out: int = 2000

    @property
    def frontend_in_s(self) -> float:
        return self.front_in * TICK_S

    def price(self, plan: StepPlan) -> StepTiming:
        load = sum(self.load_s(rank, tier) for _, rank, tier in plan.loads)
        repeat = self.host + self.host_request * plan.num_requests
        host, sync = (repeat + self.rebuild, self.sync) if plan.batch_changed else (repeat, 0)
        prompt = sum(new for _, _, new in plan.prefills)
        base = self.gpu + self.gpu_request * plan.num_requests + self.token * prompt
        attention, lora = self.context * plan.decode_context_tokens, self.gpu_adapter * plan.num_adapters
        slope = 0 if plan.prefills else self.context * plan.decode_count
        launch_bound, steps = (True, 1) if plan.prefills or self.tail else (False, self.valid_steps)
        return StepTiming(
            host * TICK_S, load, base * TICK_S, attention * TICK_S, lora * TICK_S, 0.0, slope * TICK_S, launch_bound,
            (self.tail or 500) * TICK_S, steps, (), sync * TICK_S, repeat * TICK_S,
        )  # fmt: skip

    def load_s(self, rank: int, tier: str) -> float:
        return {"gpu": 0, "host": 20_000, "disk": 200_000, "remote": 500_000}[tier] * TICK_S

    def frontend_out_s(self, running: float) -> float:
        return self.front_out * TICK_S


@dataclass(frozen=True)
class TableLatency(RoundLatency):
    """RoundLatency by a table, as the calibrated model has one: the loop prices plain steps by itself then. Prompt
    tokens are those of the step with its decodes; `launching` ticks of a prompt's step go into launches."""

    launching: int = 700
    largest: int = UNBOUNDED

    def price(self, plan: StepPlan) -> StepTiming:
        return self.price_table().price(plan)

    def price_table(self) -> PriceTable:
        times = [ticks * TICK_S for ticks in (self.context, 0, self.context, self.tail or 500, 0)]
        return PriceTable(
            {}, self._fixed, self.load_s, *times, float(self.largest), ("attention",), self.front_out * TICK_S, 0.0
        )

    def _fixed(self, key: tuple[int, int, int, int, bool, bool]) -> Any:
        tokens, requests, adapters, _, decode_only, changed = key
        repeat = self.host + self.host_request * requests
        launching = 0 if decode_only and not self.tail else self.launching
        base = self.gpu + self.gpu_request * requests + (0 if decode_only else self.token * tokens)
        first = repeat + (self.rebuild if changed else 0), self.sync if changed else 0, launching, repeat
        return *(ticks * TICK_S for ticks in (*first, base, self.gpu_adapter * adapters, 0)), ()


class FixedStep:
    """Every step takes step_s, prefills and decodes alike, whatever it holds. For queues with known answers."""

    frontend_in_s = 0.0

    def __init__(self, step_s: float) -> None:
        self.step_s = step_s

    def price(self, plan: StepPlan) -> StepTiming:
        steps = 1 if plan.prefills else UNBOUNDED
        return StepTiming(0.0, 0.0, self.step_s, 0.0, 0.0, 0.0, 0.0, False, 0.0, steps)

    def load_s(self, rank: int, tier: str) -> float:
        return 0.0

    def frontend_out_s(self, running: float) -> float:
        return 0.0


def make_requests(
    n: int, seed: int, adapters: int, rate_rps: float = 20.0, max_prompt: int = 600, max_output: int = 200
) -> list[Request]:
    """Poisson arrivals, uniform adapters (0: base) and lengths."""
    rng = random.Random(seed)
    now, out = 0.0, []
    for i in range(n):
        now += rng.expovariate(rate_rps)
        adapter = rng.randint(0, adapters)
        rank = (8, 16)[adapter % 2] if adapter else 0
        out.append(Request(i, now, adapter, rank, rng.randint(1, max_prompt), rng.randint(1, max_output)))
    return out


def two_ranks(adapter: int) -> int:
    """8 and 16 in turn; 0 for the base model."""
    return (8, 16)[adapter % 2] if adapter else 0


def requests_of_rows(
    rows: Sequence[tuple[int, int, int, int]], rank_of: Callable[[int], int] = two_ranks
) -> list[Request]:
    """Rows of (gap to the arrival before in ticks, adapter, prompt, output)."""
    now, out = 0, []
    for i, (gap, adapter, prompt, output) in enumerate(rows):
        now += gap
        out.append(Request(i, now * TICK_S, adapter, rank_of(adapter), prompt, output))
    return out


def make_tiers(limits: VllmLimits, host: int | None = None, remote: bool = False) -> AdapterTiers:
    """Slots and host cache of one replica, with the pinned adapters loaded."""
    slots = ResidentSet(limits.max_loras, pinned=limits.pinned)
    tiers = AdapterTiers(slots, ResidentSet(host or limits.max_loras, pinned=limits.pinned), remote)
    tiers.preload((), sorted(limits.pinned))
    return tiers


def make_router(kind: str, replicas: int) -> Router:
    if kind == "round-robin":
        return RoundRobin(replicas)
    return LeastRequests() if kind == "least-requests" else LoraAffinity()


def columns_of(requests: Sequence[Request]) -> RequestColumns:
    """The same requests for an engine that keeps them in columns."""
    names = ("arrival_s", "adapter", "rank", "prompt_tokens", "output_tokens")
    return RequestColumns(*([getattr(request, name) for request in requests] for name in names))


def share_prefixes(requests: RequestColumns, granule_tokens: int, groups: Sequence[int]) -> None:
    """Prompts of one group begin alike; a request without a group has no prefix."""
    requests.prefix = [
        tuple(group * 1000 + piece for piece in range(-(-prompt // granule_tokens)))
        for group, prompt in zip(groups, requests.prompt_tokens, strict=False)
    ]
    requests.prefix += [()] * (len(requests) - len(requests.prefix))


def make_cluster(
    requests: RequestColumns,
    limits: VllmLimits,
    tiers: Callable[[], AdapterTiers | None],
    replicas: int = 1,
    router: str | Router = "round-robin",
    coalesce: bool = True,
    latency: FakeLatency | RoundLatency | FixedStep | None = None,
    decodes: Callable[[], DecodeBatch | None] = lambda: None,
    cache: Callable[[RequestColumns], PrefixCache | None] = lambda requests: None,
    on_boundary: Callable[[VllmReplica, float], None] | None = None,
    replica_type: type[VllmReplica] = VllmReplica,
    **simulation: float | None,
) -> Simulation:
    """A Simulation; tiers(), decodes() and cache(requests) make the parts of one replica."""
    clock = Clock()
    latency = latency or FakeLatency()
    made = []
    for i in range(replicas):
        scheduler = VllmScheduler(limits, requests, tiers(), decodes(), cache(requests))
        prices = latency.price_table() if isinstance(latency, TableLatency) else None
        replica = replica_type(i, scheduler, latency, coalesce, prices)
        replica.on_boundary = on_boundary
        made.append(replica)
    policy = make_router(router, replicas) if isinstance(router, str) else router
    return Simulation(clock, made, policy, requests, latency.frontend_in_s, **simulation)  # type: ignore[arg-type]
