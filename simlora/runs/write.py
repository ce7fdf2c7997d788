"""Writes recorded runs: run.json out of the scenario that was played, and tables as CSV."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from simlora.runs import RUN_FORMAT
from simlora.scenario.root import Scenario

REQUEST_COLUMNS = (
    "arrival_s",
    "adapter",
    "rank",
    "prompt_tokens",
    "output_tokens",
    "ttft_s",
    "e2e_s",
    "itl_max_s",
    "itl_p50_s",
)
"""The first columns of every requests.csv; others may follow."""
STEP_COLUMNS = (
    "t_s",
    "running",
    "waiting",
    "kv_usage",
    "prompt_tokens",
    "generated_tokens",
    "preempted",
    "running_adapters",
)
DTYPES = {1: "float8", 2: "bfloat16", 4: "float32"}
"""Bytes of an element -> the name that run.json has for it."""


def describe_run(
    scenario: Scenario, server: str, server_version: str, resolved: Mapping[str, Any], **facts: Any
) -> dict[str, Any]:
    """The mapping of run.json for a run of the scenario.

    Args:
        resolved: limits that the server found for itself, under vLLM's names for every engine; the others are those of
            the scenario's engine.
        facts: keys of which the scenario knows nothing (cut_s, offered, ...), or that the server knows better.
    """
    engine, model = scenario.engine, scenario.model_spec
    return {
        "format": RUN_FORMAT,
        "gpu": _gpu(scenario),
        "server": server,
        "server_version": server_version,
        "model": model.name,
        "model_config": dataclasses.asdict(model),
        "dtype": DTYPES.get(model.dtype_bytes),
        "engine": engine.model_dump(mode="json"),
        "resolved": {
            "max_num_seqs": engine.max_num_seqs,
            "max_num_batched_tokens": engine.max_num_batched_tokens,
            "block_size": engine.block_size,
            "async_scheduling": engine.async_scheduling,
            "chunked_prefill": engine.enable_chunked_prefill,
            "max_cpu_loras": engine.max_cpu_loras if engine.enable_lora else None,
            **resolved,
        },
        "adapter_target_modules": list(scenario.adapter_modules),
        "prefix_caching": engine.enable_prefix_caching,
        "endpoint": engine.endpoint,
        "name": scenario.name,
        "kind": "trace",
        "seed": scenario.seed,
        "workload": scenario.workload.model_dump(mode="json"),
        **facts,
    }


def _gpu(scenario: Scenario) -> str | dict[str, Any]:
    """The catalogue's name, with the datasheet values that the scenario overrides."""
    given = scenario.gpu.model_dump(mode="json")
    name = scenario.gpu_spec.name
    return {**given, "name": name} if isinstance(given, dict) else name


def run_text(description: Mapping[str, Any]) -> str:
    """Text of run.json."""
    return json.dumps(description, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A CSV file with a header and Unix line ends; None is an empty cell, floats are written so that they read back."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
