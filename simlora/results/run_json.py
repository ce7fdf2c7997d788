"""run.json: what was simulated, in the format of a recorded run (simlora-run/1), so that it is validated like one."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import simlora
from simlora.results.measured import Measured, request_counts
from simlora.results.summary import to_plain
from simlora.runs.run_file import SERVER
from simlora.sim.log import ReplicaLog
from simlora.workload.traces.simlora_run import RUN_FORMAT

_DTYPES = {1: "float8", 2: "bfloat16", 4: "float32"}


def run_description(measured: Measured) -> dict[str, Any]:
    """The mapping of run.json.

    engine holds every setting of the simulated engine, its kind included; resolved what the recorder of a real server
    reads back, under vLLM's names for every engine. cut_s is null when every request ended. With one deployment per
    tenant, engine, adapters and cluster are as the user wrote them.
    """
    log = measured.log
    scenario = log.dedicated or log.scenario
    counts = request_counts(measured)
    first = log.replicas[0] if log.replicas else None
    gpu, host = list(log.initial_gpu), list(log.initial_host)
    description = {
        "format": RUN_FORMAT,
        "gpu": _gpu(scenario),
        "server": SERVER,
        "server_version": simlora.__version__,
        "model": scenario.model_spec.name,
        "model_config": dataclasses.asdict(scenario.model_spec),
        "dtype": _DTYPES.get(scenario.model_spec.dtype_bytes),
        "engine": scenario.engine.model_dump(mode="json"),
        "resolved": _resolved(scenario.engine, first),
        "start_s": first.start_s if first else None,
        "adapter_target_modules": list(scenario.adapter_modules),
        "ignore_eos": True,
        "prefix_caching": scenario.engine.enable_prefix_caching,
        "endpoint": scenario.engine.endpoint,
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


def _gpu(scenario: Any) -> Any:
    """The catalogue's name, or a mapping with the datasheet values that the scenario overrides."""
    given = scenario.gpu.model_dump(mode="json")
    name = scenario.gpu_spec.name
    return {**given, "name": name} if isinstance(given, dict) else name


def _resolved(engine: Any, first: ReplicaLog | None) -> dict[str, Any]:
    """Limits of the engine; first: its first replica."""
    return {
        "max_num_seqs": engine.max_num_seqs,
        "max_num_batched_tokens": engine.max_num_batched_tokens,
        "num_gpu_blocks": first.kv_blocks + (engine.kind == "vllm") if first else None,  # vLLM counts its null block
        "block_size": first.block_size if first else engine.block_size,
        "async_scheduling": engine.async_scheduling,
        "chunked_prefill": engine.enable_chunked_prefill,
        "max_cpu_loras": engine.max_cpu_loras if engine.enable_lora else None,
    }


def run_text(measured: Measured) -> str:
    """Text of run.json."""
    return json.dumps(run_description(measured), indent=1, allow_nan=False, ensure_ascii=False) + "\n"
