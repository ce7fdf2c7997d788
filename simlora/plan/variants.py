"""The same scenario on other engines: what carries over, and what becomes that engine's own default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simlora.errors import ConfigError
from simlora.scenario import ENGINES, Scenario, scenario_from_dict

DEDICATED = "dedicated"
"""One merged deployment per tenant: a topology of the cluster, compared like an engine."""
KINDS = (*ENGINES, DEDICATED)
SHARED_KEYS = (
    "enable_lora", "tensor_parallel_size", "pipeline_parallel_size", "max_model_len", "endpoint", "adapter_loading",
    "max_num_seqs", "gpu_memory_utilization", "block_size", "enforce_eager",
)  # fmt: skip
"""Settings with one meaning everywhere. They carry over where the other engine has the key and takes the value."""
SEATS = {"slora": "running_max_req_size", "punica": "max_batch_size", "sglang": "max_running_requests"}
"""vLLM's max_num_seqs by its name in other engines."""


def variant(scenario: Scenario, kind: str) -> Scenario:
    """The scenario on another engine: same model, GPUs, adapters, requests, storage, SLO and prices.

    Raises:
        ConfigError: the engine cannot serve it; the message says why.
    """
    if kind not in KINDS:
        raise ConfigError("<arguments>", "--engines", kind, f"names from: {', '.join(KINDS)}")
    raw = scenario.raw
    if kind == DEDICATED:
        raw["cluster"] = {"topology": DEDICATED, "dedicated": raw.get("cluster", {}).get("dedicated")}
        raw["engine"] = raw.get("engine", {}) if scenario.engine.kind == "vllm" else _carried(scenario, "vllm")
    elif kind != scenario.engine.kind or scenario.cluster.topology == DEDICATED:
        raw["engine"] = _carried(scenario, kind)
        if scenario.cluster.topology == DEDICATED:
            raw.pop("cluster")
    if raw.get("adapters", {}).get("preload") and kind != "vllm":
        raw["adapters"] = {key: value for key, value in raw["adapters"].items() if key != "preload"}
    return scenario_from_dict(raw, f"{scenario.source} ({kind})", scenario.folder)


def _carried(scenario: Scenario, kind: str) -> dict[str, Any]:
    """The engine section for another kind."""
    fields = ENGINES[kind].model_fields
    given: Mapping[str, Any] = scenario.raw.get("engine", {})
    engine = {key: value for key, value in given.items() if key in SHARED_KEYS and key in fields}
    engine |= {"kind": kind, "max_model_len": scenario.engine.max_model_len}
    if kind in SEATS and "max_num_seqs" in given:
        engine[SEATS[kind]] = given["max_num_seqs"]
    if kind == "sglang" and "max_loras" in given:
        engine["max_loras_per_batch"] = given["max_loras"] + 1  # the base model takes a slot
    if kind in ("grouped", "sequential", "punica") and "max_loras" in given:
        engine["max_loras"] = given["max_loras"]
    if "gpu_memory_utilization" in fields:
        engine.setdefault("gpu_memory_utilization", scenario.engine.gpu_memory_utilization)
    return engine
