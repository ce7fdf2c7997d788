"""Summaries and run.json of engines other than vLLM: their own units, limits and names."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simlora.engines.registry import engine_spec
from simlora.results.files import run_writers, write_folder
from simlora.results.health import resource_name
from simlora.results.measured import Measured
from simlora.results.own_run import run_description
from simlora.results.summary import summarize
from simlora.scenario.engines import ENGINES, engine_config
from simlora.scenario.load import scenario_from_dict
from simlora.sim.build import build_inputs
from simlora.sim.log import SimulationLog
from simlora.sim.simulate import simulate
from simlora.validate.compare import validate

MIXED = {"count": 12, "ranks": {8: 0.5, 64: 0.5}, "base_fraction": 0.2}
VARIANTS: dict[str, dict[str, Any]] = {
    "vllm": {"engine": {"max_loras": 4, "max_lora_rank": 64}, "adapters": MIXED},
    "vllm, kernels at own ranks": {
        "engine": {"max_loras": 4, "max_lora_rank": 64, "kernels": "mbgmv"},
        "adapters": MIXED,
    },
    "slora": {"engine": {"kind": "slora"}, "adapters": MIXED},
    "slora in pages": {"engine": {"kind": "slora", "page": "64KiB"}, "adapters": MIXED},
    "slora that aborts": {
        "engine": {"kind": "slora", "early_abort": True, "abort_after_s": 2.0, "running_max_req_size": 4}
    },
    "lorax": {"engine": {"kind": "lorax"}, "adapters": MIXED},
    "lorax that refuses": {"engine": {"kind": "lorax", "max_concurrent_requests": 6}},
    "punica": {"engine": {"kind": "punica"}},
    "sglang": {"engine": {"kind": "sglang"}, "adapters": {**MIXED, "pinned": [2]}},
    "grouped": {"engine": {"kind": "grouped", "max_loras": 4}, "adapters": MIXED},
    "sequential": {"engine": {"kind": "sequential"}, "adapters": MIXED},
    "merged-swap": {"engine": {"kind": "merged-swap"}, "adapters": MIXED},
    "dedicated": {"engine": {"max_loras": 4}, "cluster": {"topology": "dedicated"}},
    "dedicated that sleeps": {
        "engine": {"max_lora_rank": 64},
        "adapters": MIXED,
        "cluster": {"topology": "dedicated", "dedicated": {"scale_to_zero_s": 1.0, "cold_start_s": 2.0}},
    },
    "a GPU of its own": {"gpu": {"name": "h100", "memory_gib": 64, "hbm_gb_per_s": 2000}, "engine": {"kind": "slora"}},
}


def played(name: str, **changes: Any) -> SimulationLog:
    data = {
        "name": "other",
        "model": "llama-2-7b",
        "adapters": {"count": 12, "ranks": 16, "popularity": {"kind": "zipf", "alpha": 1.0}},
        "workload": {"arrivals": {"kind": "poisson", "rate_rps": 8}, "duration_s": 10},
    }
    return simulate(build_inputs(scenario_from_dict({**data, **VARIANTS[name], **changes})))


@pytest.mark.parametrize("name", VARIANTS)
def test_shares_and_fractions_are_fractions(name: str) -> None:
    summary = summarize(played(name))
    assert sum(summary["bottleneck"]["shares"].values()) == pytest.approx(1.0)
    for block, keys in (("gpu", summary["gpu"]), ("memory", ("kv_usage_mean", "kv_usage_max"))):
        assert all(0 <= summary[block][key] <= 1 for key in keys), block
    pads = name == "vllm"
    assert (summary["ranks"]["padded_compute_waste_fraction"] > 0) == pads
    json.dumps(summary, allow_nan=False)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_run_replays_without_error(name: str, tmp_path: Path) -> None:
    """requests.csv and run.json say all that the simulation needs, whatever the engine."""
    log = played(name)
    write_folder(tmp_path / "run", run_writers(log, summarize(log)))
    report = validate([tmp_path / "run"])
    assert len(report.rows) == 10
    assert all(row.error == pytest.approx(0, abs=1e-9) for row in report.rows), report.rows


@pytest.mark.parametrize("kind", ENGINES)
def test_run_json_holds_every_setting(kind: str) -> None:
    log = played("punica", engine={"kind": kind})
    run = run_description(Measured(log))
    assert set(run["engine"]) == set(engine_config(kind).model_fields) and run["engine"]["kind"] == kind
    assert run["resolved"]["max_num_seqs"] == log.scenario.engine.max_num_seqs
    assert run["resolved"]["num_gpu_blocks"] == log.replicas[0].kv_blocks + (kind == "vllm")
    assert run["resolved"]["block_size"] == log.replicas[0].block_size


def test_run_json_names_the_gpu_and_what_the_scenario_changed_of_it() -> None:
    assert run_description(Measured(played("punica", gpu="h100")))["gpu"] == "h100-80gb"
    found = run_description(Measured(played("a GPU of its own")))["gpu"]
    assert found == {"name": "h100-80gb", "memory_gib": 64.0, "hbm_gb_per_s": 2000.0}


def test_run_json_of_dedicated_deployments_is_what_the_user_wrote() -> None:
    run = run_description(Measured(played("dedicated that sleeps")))
    assert run["cluster"]["topology"] == "dedicated" and run["cluster"]["dedicated"]["cold_start_s"] == 2.0
    assert run["adapters"]["count"] == 12 and run["engine"]["enable_lora"]


def test_adapters_bounded_by_bytes_have_no_number_of_slots() -> None:
    summary = summarize(played("slora"))
    assert summary["replicas"][0]["slots"] is None
    assert summary["active_adapters"]["over_slots_fraction"] == 0.0
    assert summary["ranks"]["padded_memory_waste_bytes"] == 0


def test_dedicated_deployments_have_no_slots_to_wait_for() -> None:
    summary = summarize(played("dedicated"))
    assert summary["active_adapters"]["max"] == 1 and summary["active_adapters"]["over_slots_fraction"] == 0.0
    assert summary["adapters"]["loads"] == 0 and summary["adapters"]["distinct"] > 4


def test_loads_ahead_of_an_admission_count() -> None:
    """S-LoRA prefetches: a request that finds its adapter there may have had it loaded all the same."""
    log = played("slora")
    summary = summarize(log)
    replica = log.replicas[0]
    assert summary["adapters"]["loads"] == replica.loads == summary["adapters"]["distinct"]
    assert replica.host_hits < summary["adapters"]["loads"]
    fewer = summarize(replace(log, replicas=(replace(replica, loads=None),)))
    assert fewer["adapters"]["loads"] == replica.host_hits


def test_slora_moves_and_reads_attention_projections_only() -> None:
    """The same requests: four of seven projections, 2/5 of the bytes of a load (GQA aside)."""
    per_load = {
        kind: summary["adapters"]["load_bytes"] / summary["adapters"]["loads"]
        for kind in ("slora", "sglang")
        for summary in (summarize(played("punica", engine={"kind": kind})),)
    }
    attention, all_linear = 8 * 4096, 8 * 4096 + 3 * (4096 + 11008)
    assert per_load["slora"] / per_load["sglang"] == pytest.approx(attention / all_linear)


@pytest.mark.parametrize(
    ("kind", "seats", "tokens"),
    [
        ("vllm", "max_num_seqs", "max_num_batched_tokens"),
        ("slora", "running_max_req_size", "batch_max_tokens"),
        ("lorax", "max_concurrent_requests", "max_batch_prefill_tokens"),
        ("sglang", "max_running_requests", "chunked_prefill_size"),
        ("punica", "max_batch_size", "max_num_batched_tokens"),
        ("grouped", "max_num_seqs", "max_num_batched_tokens"),
    ],
)
def test_limits_have_the_engines_own_names(kind: str, seats: str, tokens: str) -> None:
    engine = scenario_from_dict({"model": "llama-2-7b", "engine": {"kind": kind}}).engine
    assert resource_name("seqs", engine) == seats and resource_name("tokens", engine) == tokens
    assert resource_name("kv", engine) == "KV memory"


def test_seats_that_bind_are_named() -> None:
    few = {"kind": "slora", "running_max_req_size": 2}
    summary = summarize(played("punica", engine=few))
    assert summary["saturation"]["resource"] in ("seqs", "rate") and summary["bottleneck"]["binding"] == "queue_seqs"
    waiting = {"kind": "lorax", "max_concurrent_requests": 6}
    assert summarize(played("punica", engine=waiting))["saturation"]["resource"] == "seqs"


def test_waking_deployments_are_not_near_saturation() -> None:
    """Requests that wait for a cold start are not yet in anybody's queue."""
    summary = summarize(played("dedicated", cluster={"topology": "dedicated", "dedicated": {"scale_to_zero_s": 5}}))
    assert summary["bottleneck"]["binding"] == "route" and summary["saturation"]["resource"] != "rate"


def test_rejected_requests_of_a_real_server_are_left_out(tmp_path: Path) -> None:
    log = played("lorax that refuses")
    assert np.any(log.requests.status == 1)
    write_folder(tmp_path / "run", run_writers(log, summarize(log)))
    path = tmp_path / "run" / "run.json"
    run = json.loads(path.read_text())
    assert not any("left out" in note for note in validate([tmp_path / "run"]).notes)
    path.write_text(json.dumps({**run, "server": "lorax"}))
    assert any("left out" in note for note in validate([tmp_path / "run"]).notes)


def test_a_load_before_admission_is_not_taken_off_the_service() -> None:
    """LoRAX admits a request when its adapter is there; vLLM loads in the request's first step, unless it overlaps."""
    for kind, before in (("lorax", True), ("punica", True), ("vllm", False), ("slora", True), ("grouped", False)):
        engine = scenario_from_dict({"model": "llama-2-7b", "engine": {"kind": kind}, "adapters": {"ranks": 16}}).engine
        assert engine_spec(kind).loads_before_admission(engine) is before, kind
    overlapped = {"kind": "vllm", "adapter_loading": {"overlap": True}}
    engine = scenario_from_dict({"model": "llama-2-7b", "engine": overlapped}).engine
    assert engine_spec("vllm").loads_before_admission(engine)
