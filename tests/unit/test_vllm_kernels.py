"""What vLLM would do with other LoRA kernels: `kernels: <family>`."""

from __future__ import annotations

from functools import cache
from typing import Any, get_args

import numpy as np
import pytest

from simlora.results.summary import summarize
from simlora.scenario.engines.base import KernelFamily
from simlora.scenario.load import scenario_from_dict
from simlora.sim.build import build_inputs
from simlora.sim.log import SimulationLog
from simlora.sim.simulate import simulate


@cache
def log_of(kernels: str | None, coalesce: bool = True) -> SimulationLog:
    """16 adapters of three ranks in slots of 64, everything at once."""
    engine = {"max_loras": 16, "max_cpu_loras": 16, "max_lora_rank": 64, "max_num_seqs": 64, "max_model_len": 4096}
    data: dict[str, Any] = {
        "model": "llama-3.1-8b", "gpu": "h200-141gb", "engine": engine | ({"kernels": kernels} if kernels else {}),
        "adapters": {"count": 16, "ranks": {8: 0.5, 16: 0.25, 64: 0.25}, "preload": True},
        "workload": {
            "arrivals": {"kind": "poisson", "rate_rps": 1000}, "num_requests": 200,
            "prompt_tokens": {"kind": "lognormal", "median": 200, "sigma": 0.5, "max": 1000},
            "output_tokens": {"kind": "lognormal", "median": 100, "sigma": 0.5, "max": 500},
        },
    }  # fmt: skip
    return simulate(build_inputs(scenario_from_dict(data)), coalesce=coalesce, check=True)


def test_the_default_is_padded() -> None:
    one, other = log_of(None), log_of("padded")
    assert np.array_equal(one.requests.last_token_s, other.requests.last_token_s)


@pytest.mark.parametrize("kernels", [k for k in get_args(KernelFamily) if k != "padded"])
def test_every_family_serves_the_same_requests(kernels: str) -> None:
    summary = summarize(log_of(kernels))
    assert summary["requests"]["completed"] == 200
    assert np.array_equal(log_of(kernels).requests.last_token_s, log_of(kernels, False).requests.last_token_s)


def test_only_families_that_pad_waste_compute_on_padding() -> None:
    wasted = {k: summarize(log_of(k))["ranks"]["padded_compute_waste_fraction"] for k in get_args(KernelFamily)}
    assert wasted["padded"] > 0.4 and wasted["padded-bmm"] > 0.3
    assert {k: w for k, w in wasted.items() if w} == {k: wasted[k] for k in ("padded", "padded-bmm")}


def test_slots_waste_memory_whatever_the_kernels() -> None:
    wasted = {k: summarize(log_of(k))["ranks"]["padded_memory_waste_bytes"] for k in ("padded", "simlora")}
    assert wasted["simlora"] == wasted["padded"] > 0


def test_kernels_at_own_ranks_give_more_tokens_for_a_dollar() -> None:
    padded, own = summarize(log_of("padded")), summarize(log_of("simlora"))
    assert own["output_throughput_tps"] > padded["output_throughput_tps"]
    assert own["cost"]["usd_per_1m_output_tokens"] < padded["cost"]["usd_per_1m_output_tokens"]


def test_a_loop_over_adapters_is_slowest() -> None:
    throughput = {k: summarize(log_of(k))["output_throughput_tps"] for k in get_args(KernelFamily)}
    assert min(throughput, key=lambda k: throughput[k]) in ("loop", "grouped-gemm")
