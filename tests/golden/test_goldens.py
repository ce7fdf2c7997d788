"""Small scenarios whose summaries must not drift: a change here is a change of results, to be explained in its commit.

The calibration is pinned (calibration.json), so that new measurements do not touch these. Write the files anew with
`SIMLORA_WRITE_GOLDENS=1 pytest tests/golden`. Beside each golden stands a law on the same run.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simlora.results.summary import summarize, to_json
from simlora.scenario.load import scenario_from_dict
from simlora.sim.build import build_inputs
from simlora.sim.log import SimulationLog
from simlora.sim.simulate import simulate

HERE = Path(__file__).parent
BASE = {"model": "llama-3.1-8b", "gpu": "h200-141gb", "calibration": str(HERE / "calibration.json")}
LENGTHS = {
    "prompt_tokens": {"kind": "lognormal", "median": 150, "sigma": 0.9, "max": 4000},
    "output_tokens": {"kind": "lognormal", "median": 120, "sigma": 0.8, "max": 1500},
}
SCENARIOS: dict[str, dict[str, Any]] = {
    "slots": {
        "engine": {"max_loras": 4, "max_cpu_loras": 12, "max_num_seqs": 64, "max_num_batched_tokens": 1024},
        "adapters": {
            "count": 24,
            "ranks": {8: 0.5, 16: 0.5},
            "popularity": {"kind": "zipf", "alpha": 0.8},
            "pinned": [2],
        },
        "workload": {"arrivals": {"kind": "gamma", "rate_rps": 8, "cv": 2.0}, **LENGTHS, "num_requests": 300},
    },
    "kv": {
        "engine": {"max_loras": 8, "max_model_len": 6000, "num_gpu_blocks_override": 700},
        "adapters": {"count": 8, "ranks": 16, "base_fraction": 0.3},
        "workload": {"arrivals": {"kind": "poisson", "rate_rps": 12}, **LENGTHS, "num_requests": 200},
    },
    "replicas": {
        "engine": {"version": "0.8.5", "max_loras": 4},
        "adapters": {"count": 16, "ranks": 16, "popularity": {"kind": "power", "alpha": 0.5}},
        "workload": {"arrivals": {"kind": "poisson", "rate_rps": 15}, **LENGTHS, "duration_s": 20, "end": "cut"},
        "cluster": {"replicas": 3, "router": {"kind": "lora-affinity", "scrape_s": 0.05}},
    },
    "slora": {
        "engine": {"kind": "slora", "max_model_len": 6000, "max_total_token_num": 9000, "batch_max_tokens": 6000},
        "adapters": {"count": 40, "ranks": {8: 0.5, 64: 0.5}, "popularity": {"kind": "zipf", "alpha": 0.8}},
        "workload": {"arrivals": {"kind": "poisson", "rate_rps": 6}, **LENGTHS, "num_requests": 150},
    },
    "lorax": {
        "engine": {"kind": "lorax", "max_model_len": 6000, "adapter_memory_fraction": 0.01, "host_cache": True},
        "adapters": {"count": 40, "ranks": {8: 0.5, 64: 0.5}},
        "workload": {"arrivals": {"kind": "poisson", "rate_rps": 6}, **LENGTHS, "num_requests": 150},
    },
    "sglang": {
        "engine": {"kind": "sglang", "max_model_len": 6000, "max_loras_per_batch": 5, "chunked_prefill_size": 512},
        "adapters": {"count": 12, "ranks": 16, "base_fraction": 0.2},
        "workload": {"arrivals": {"kind": "poisson", "rate_rps": 6}, **LENGTHS, "num_requests": 150},
    },
    "punica": {
        "engine": {"kind": "punica", "max_model_len": 6000, "max_batch_size": 16, "max_loras": 6},
        "adapters": {"count": 24, "ranks": 16, "popularity": {"kind": "zipf", "alpha": 1.0}},
        "workload": {"arrivals": {"kind": "poisson", "rate_rps": 6}, **LENGTHS, "num_requests": 150},
        "cluster": {"replicas": 2, "router": {"kind": "punica", "consolidate_s": 5.0}},
    },
    "overlap": {
        "engine": {"max_loras": 4, "max_cpu_loras": 24, "adapter_loading": {"overlap": True, "prefetch": True}},
        "adapters": {"count": 24, "ranks": {8: 0.5, 16: 0.5}},
        "workload": {"arrivals": {"kind": "gamma", "rate_rps": 8, "cv": 2.0}, **LENGTHS, "num_requests": 200},
    },
    "pipeline": {
        "engine": {"max_loras": 8, "max_model_len": 6000, "pipeline_parallel_size": 2, "tensor_parallel_size": 2},
        "adapters": {"count": 8, "ranks": 16},
        "workload": {"arrivals": {"kind": "poisson", "rate_rps": 8}, **LENGTHS, "num_requests": 60},
    },
}


def run(name: str, coalesce: bool = True) -> SimulationLog:
    return simulate(build_inputs(scenario_from_dict({"name": name, **BASE, **SCENARIOS[name]})), coalesce=coalesce)


def close(a: Any, b: Any, where: str = "") -> None:
    """Equal, floats to a relative 1e-9: goldens cross machines, whose libm may differ in the last bit."""
    if isinstance(a, dict):
        assert isinstance(b, dict) and list(a) == list(b), where
        for key in a:
            close(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, list):
        assert isinstance(b, list) and len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            close(x, y, f"{where}[{i}]")
    elif isinstance(a, float) and isinstance(b, float):
        assert math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12), f"{where}: {a} != {b}"
    else:
        assert a == b, f"{where}: {a} != {b}"


@pytest.mark.parametrize("name", SCENARIOS)
def test_summary_is_as_recorded(name: str) -> None:
    path = HERE / f"{name}.json"
    summary = summarize(run(name))
    del summary["calibration"]["id"], summary["calibration"]["sha256"]  # they name the file, not a result
    if os.environ.get("SIMLORA_WRITE_GOLDENS"):
        path.write_text(to_json(summary))
    close(summary, json.loads(path.read_text()))


@pytest.mark.parametrize("name", SCENARIOS)
def test_laws_beside_the_goldens(name: str) -> None:
    fast, slow = run(name), run(name, coalesce=False)
    for column in ("admitted_s", "first_token_s", "last_token_s", "load_s"):
        np.testing.assert_array_equal(getattr(fast.requests, column), getattr(slow.requests, column))
    done = fast.requests.status == 0
    times = np.stack(
        [getattr(fast.requests, c)[done] for c in ("arrival_s", "admitted_s", "first_token_s", "last_token_s")]
    )
    assert np.all(np.diff(times, axis=0) >= 0)
    computed = sum(float(replica.runs["prefill_tokens"].sum()) for replica in fast.replicas)
    asked = float(fast.requests.prompt_tokens[fast.requests.first_run >= 0].sum())
    recomputed = float(fast.requests.recomputed_tokens.sum())
    if name != "replicas":  # not cut: prompts are computed once, and what a preemption dropped once more (+ 1 token)
        extra = computed - asked - recomputed
        assert 0 <= extra <= fast.requests.preemptions.sum()
