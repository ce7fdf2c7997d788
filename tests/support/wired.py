"""Latency models as scenarios build them: which kernels an engine takes, what it exchanges, what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from simlora.errors import ConfigError
from simlora.latency.families.choice import Layout, make_family
from simlora.latency.families.work import LoraFamily, LoraWork
from simlora.latency.family_latency import FamilyLatency
from simlora.latency.step import AdapterMix, StepPlan
from simlora.scenario.load import scenario_from_dict
from simlora.scenario.root import Scenario
from simlora.sim.build import build_inputs

LAYERS = 32
"""Of Llama-2-7B."""
FAMILIES = ("sgmv", "bgmv", "mbgmv", "mbgmm", "csgmv", "simlora", "padded-bmm", "loop", "grouped-gemm")


def scenario(kind: str, **engine: Any) -> Scenario:
    """Llama-2-7B on H200s, 8 adapters of rank 16 on all seven projections."""
    return scenario_from_dict(
        {
            "model": "llama-2-7b",
            "gpu": "h200-141gb",
            "engine": {"kind": kind, **engine},
            "adapters": {"count": 8 if engine.get("enable_lora", True) else 0, "ranks": 16},
            "workload": {"arrivals": {"kind": "poisson", "rate_rps": 1}, "num_requests": 1},
        }
    )


def wired(kind: str, **engine: Any) -> FamilyLatency:
    """The latency model that a run of the scenario gets."""
    latency = build_inputs(scenario(kind, **engine)).latency
    assert isinstance(latency, FamilyLatency)
    return latency


def work(tokens: int, adapters: int, distinct_ranks: int = 1) -> LoraWork:
    """Rows of adapters, all of rank 16 as far as their sums go."""
    return LoraWork(tokens, tokens, adapters, AdapterMix(16 * adapters, 16 * tokens, 16, distinct_ranks), 8, 8)


def kernels_of(latency: FamilyLatency, prompts: int, asked: LoraWork) -> tuple[str, LoraFamily]:
    """The name of the family that serves a step with that many prompts, and its kernels."""
    found = latency.kernels.family(prompts, asked)
    assert found is not None
    profile, degree = latency.profile, latency.engine.tensor_parallel_size
    layout = Layout(latency.model, degree, latency.slot_modules, profile.sharded, profile.slotted)
    made = {name: make_family(name, latency.calibration, layout, profile.one_rank).kernels for name in FAMILIES}
    (name,) = (name for name, family in made.items() if family == found)
    return name, found


def lora_exchange_s(latency: FamilyLatency, plan: StepPlan) -> float:
    """What LoRA adds to a step's collectives."""
    bare = plan._replace(num_adapters=0, lora_tokens=0, max_rank=0, mix=None)
    return latency.price(plan).collective_s - latency.price(bare).collective_s


def assert_no_stages(kind: str) -> None:
    """Pipeline stages are refused by name."""
    with pytest.raises(ConfigError, match=r"engine\.pipeline_parallel_size: 2: must be 1: ") as caught:
        scenario(kind, pipeline_parallel_size=2)
    assert kind in str(caught.value).lower()
