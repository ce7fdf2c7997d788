"""The same scenario on other engines: what carries over, and what becomes that engine's own default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simlora.errors import ConfigError
from simlora.scenario.checks import largest_host_cache
from simlora.scenario.engines import ENGINES
from simlora.scenario.engines.vllm_versions import V0_20
from simlora.scenario.load import scenario_from_dict
from simlora.scenario.root import Scenario

DEDICATED = "dedicated"
"""One merged deployment per tenant: a topology of the cluster, compared like an engine."""
KINDS = (*ENGINES, DEDICATED)
SHARED_KEYS = (
    "enable_lora", "tensor_parallel_size", "pipeline_parallel_size", "max_model_len", "endpoint",
    "max_num_seqs", "gpu_memory_utilization", "block_size", "enforce_eager",
)  # fmt: skip
"""Settings with one meaning everywhere. They carry over where the other engine has the key and takes the value."""
SEATS = {"slora": "running_max_req_size", "punica": "max_batch_size", "sglang": "max_running_requests"}
"""vLLM's max_num_seqs by its name in other engines. LoRAX's limit counts waiting requests, too, and is left alone."""
VLLM_SLOTS = 8
"""Slots of vLLM where the scenario's engine does not count places for adapters: SGLang's own default."""


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
    elif kind != scenario.engine.kind:
        raw["engine"] = _carried(scenario, kind)
    if kind != DEDICATED and scenario.cluster.topology == DEDICATED:
        raw.pop("cluster")
    if raw.get("adapters", {}).get("preload") and kind == "slora":  # it does so by itself
        raw["adapters"] = {key: value for key, value in raw["adapters"].items() if key != "preload"}
    return scenario_from_dict(raw, f"{scenario.source} ({kind})", scenario.folder)


def _carried(scenario: Scenario, kind: str) -> dict[str, Any]:
    """The engine section for another kind."""
    fields = ENGINES[kind].model_fields
    given: Mapping[str, Any] = scenario.raw.get("engine", {})
    engine = {key: value for key, value in given.items() if key in SHARED_KEYS and key in fields}
    engine |= {"kind": kind, "max_model_len": scenario.engine.max_model_len}
    seats = given.get(SEATS.get(scenario.engine.kind, "max_num_seqs"))
    if seats is not None and kind != "lorax":
        engine[SEATS.get(kind, "max_num_seqs")] = seats
    engine |= _places(scenario, kind)
    if "gpu_memory_utilization" in fields and "gpu_memory_utilization" in ENGINES[scenario.engine.kind].model_fields:
        engine.setdefault("gpu_memory_utilization", scenario.engine.gpu_memory_utilization)
    return {key: value for key, value in engine.items() if key in fields}


def _places(scenario: Scenario, kind: str) -> dict[str, Any]:
    """Places for adapters on the GPU, by the other kind's names; empty where it does not count them."""
    given: Mapping[str, Any] = scenario.raw.get("engine", {})
    slots = given.get("max_loras")
    if scenario.engine.kind == "sglang":
        slots = max(scenario.engine.max_loras - 1, 1)  # the base model takes a slot
    if kind == "vllm":
        return _vllm_places(scenario, slots)
    if slots is None:
        return {}
    return {"max_loras_per_batch": slots + 1} if kind == "sglang" else {"max_loras": slots}


def _vllm_places(scenario: Scenario, slots: int | None) -> dict[str, Any]:
    """vLLM has no useful defaults: slots of the smallest rank that holds every adapter, and all of them in host memory
    as far as it goes, which is what the other engines do by themselves."""
    count = scenario.adapters.count
    if not count or not scenario.engine.enable_lora:
        return {}
    slots = slots or min(VLLM_SLOTS, count)
    largest = max(rank for rank, number in scenario.adapters.rank_counts().items() if number > 0)
    rank = min((rank for rank in V0_20.allowed_lora_ranks if rank >= largest), default=largest)
    cached = max(min(count, largest_host_cache(scenario)), slots)
    return {"max_loras": slots, "max_lora_rank": rank, "max_cpu_loras": cached}
