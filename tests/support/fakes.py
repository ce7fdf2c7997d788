"""A latency model of round numbers, and a cluster built from bare limits, for tests of scheduling."""

from __future__ import annotations

import random

from simlora.cluster.router import LeastRequests, LoraAffinity, RoundRobin
from simlora.engines.request import Request
from simlora.engines.vllm import VllmEngine, VllmLimits
from simlora.latency.step import StepPlan, StepTiming
from simlora.sim.clock import Clock
from simlora.sim.replica import Replica
from simlora.sim.simulation import Simulation


class FakeLatency:
    """Decode steps are graphs of 5 ms + context; prefill steps are launch bound."""

    frontend_in_s = 0.001

    def __init__(self, valid_steps: int = 1 << 40, host_s: float = 0.002) -> None:
        self.valid_steps, self.host_s = valid_steps, host_s

    def price(self, plan: StepPlan) -> StepTiming:
        load_s = sum(self.load_s(rank, tier) for _, rank, tier in plan.loads)
        host = self.host_s + 1e-5 * plan.num_requests
        lora = 0.001 * (plan.num_adapters > 0) + 1e-4 * plan.num_adapters
        attention = 3e-8 * plan.decode_context_tokens
        if plan.prefills:
            base = 0.004 + 2e-5 * plan.num_tokens
            return StepTiming(host + 0.01, load_s, base, attention, lora, 0.0, 0.0, True, 0.001, 1)
        return StepTiming(
            host,
            load_s,
            0.004 + 1e-5 * plan.decode_count,
            attention,
            lora,
            0.0,
            3e-8 * plan.decode_count,
            False,
            0.0,
            self.valid_steps,
        )

    def load_s(self, rank: int, tier: str) -> float:
        return {"gpu": 0.0, "host": 0.02, "disk": 0.2, "remote": 0.5}[tier]

    def frontend_out_s(self, running: float) -> float:
        return 0.002 + 1e-5 * running


def make_requests(
    n: int, seed: int, adapters: int, rate_rps: float = 20.0, max_prompt: int = 600, max_output: int = 200
) -> list[Request]:
    rng = random.Random(seed)
    now, out = 0.0, []
    for i in range(n):
        now += rng.expovariate(rate_rps)
        adapter = rng.randint(0, adapters)
        rank = (8, 16)[adapter % 2] if adapter else 0
        out.append(Request(i, now, adapter, rank, rng.randint(1, max_prompt), rng.randint(1, max_output)))
    return out


def make_cluster(
    requests,
    limits: VllmLimits,
    tiers,
    replicas: int = 1,
    router: str = "round-robin",
    coalesce: bool = True,
    latency=None,
    **kw,
):
    """A Simulation; tiers() makes the adapter tiers of one replica."""
    clock = Clock()
    latency = latency or FakeLatency()
    made = [Replica(i, VllmEngine(limits, tiers()), latency, clock, coalesce) for i in range(replicas)]
    policy = {
        "round-robin": lambda: RoundRobin(replicas),
        "least-requests": LeastRequests,
        "lora-affinity": LoraAffinity,
    }[router]()
    return Simulation(clock, made, policy, requests, latency.frontend_in_s, **kw)
