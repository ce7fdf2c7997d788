"""run.json: what was simulated, in the format of a recorded run (simlora-run/1), so that it is validated like one."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import simlora
from simlora.results.latency import Measured
from simlora.results.summary import to_plain
from simlora.results.throughput import request_counts

FORMAT = "simlora-run/1"
SERVER = "simlora"
_DTYPES = {1: "float8", 2: "bfloat16", 4: "float32"}


def run_description(measured: Measured) -> dict[str, Any]:
    """The mapping of run.json.

    engine holds every setting of the simulated engine, its kind and version included; resolved what the recorder of a
    real server reads back. cut_s is null when every request ended.
    """
    log, scenario = measured.log, measured.log.scenario
    counts = request_counts(measured)
    engine = scenario.engine.model_dump(mode="json")
    first = log.replicas[0] if log.replicas else None
    gpu, host = list(log.initial_gpu), list(log.initial_host)
    description = {
        "format": FORMAT,
        "gpu": scenario.gpu_spec.name,
        "server": SERVER,
        "server_version": simlora.__version__,
        "model": scenario.model_spec.name,
        "model_config": dataclasses.asdict(scenario.model_spec),
        "dtype": _DTYPES.get(scenario.model_spec.dtype_bytes),
        "engine": engine,
        "resolved": {
            "max_num_seqs": engine["max_num_seqs"],
            "max_num_batched_tokens": engine["max_num_batched_tokens"],
            "num_gpu_blocks": first.kv_blocks + 1 if first else None,  # vLLM counts its null block
            "block_size": engine["block_size"],
            "async_scheduling": engine["async_scheduling"],
            "chunked_prefill": engine["enable_chunked_prefill"],
            "max_cpu_loras": engine["max_cpu_loras"] if engine["enable_lora"] else None,
        },
        "start_s": first.start_s if first else None,
        "adapter_target_modules": list(scenario.adapter_modules),
        "ignore_eos": True,
        "prefix_caching": engine["enable_prefix_caching"],
        "endpoint": engine["endpoint"],
        "host": None,
        "calibration": {key: log.calibration.get(key) for key in ("id", "sha256")},
        "name": scenario.name,
        "kind": "trace",
        "seed": scenario.seed,
        "initial_adapters": {"gpu": gpu, "host": host, "gpu_others": 0, "host_others": 0},
        "adapters": scenario.adapters.model_dump(mode="json"),
        "workload": scenario.workload.model_dump(mode="json"),
        "cluster": scenario.cluster.model_dump(mode="json"),
        "storage": scenario.storage.model_dump(mode="json"),
        "cut_s": log.end_s if counts["unfinished"] else None,
        "wall_s": log.end_s,
        "offered": counts["offered"],
        "completed": counts["completed"],
    }
    plain: dict[str, Any] = to_plain(description)
    return plain


def run_text(measured: Measured) -> str:
    """Text of run.json."""
    return json.dumps(run_description(measured), indent=1, allow_nan=False, ensure_ascii=False) + "\n"
