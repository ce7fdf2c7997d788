"""The same scenario on other engines: what carries over, and what becomes that engine's own default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simlora.engines.registry import engine_spec
from simlora.errors import ConfigError
from simlora.scenario.engines import ENGINES, engine_config
from simlora.scenario.load import scenario_from_dict
from simlora.scenario.root import Scenario

DEDICATED = "dedicated"
"""One merged deployment per tenant: a topology of the cluster, compared like an engine."""
MERGING = "vllm"
"""The engine of those deployments."""
SHARED_KEYS = (
    "enable_lora", "tensor_parallel_size", "pipeline_parallel_size", "max_model_len", "endpoint",
    "max_num_seqs", "gpu_memory_utilization", "block_size", "enforce_eager",
)  # fmt: skip
"""Settings with one meaning everywhere. They carry over where the other engine has the key and takes the value."""


def variant(scenario: Scenario, kind: str) -> Scenario:
    """The scenario on another engine: same model, GPUs, adapters, requests, storage, SLO and prices.

    Raises:
        ConfigError: the engine cannot serve it; the message says why.
    """
    kinds = (*ENGINES, DEDICATED)
    if kind not in kinds:
        raise ConfigError("<arguments>", "--engines", kind, f"names from: {', '.join(kinds)}")
    raw = scenario.raw
    if kind == DEDICATED:
        raw["cluster"] = {"topology": DEDICATED, "dedicated": raw.get("cluster", {}).get("dedicated")}
        raw["engine"] = raw.get("engine", {}) if scenario.engine.kind == MERGING else _carried(scenario, MERGING)
    elif kind != scenario.engine.kind:
        raw["engine"] = _carried(scenario, kind)
    if kind != DEDICATED and scenario.cluster.topology == DEDICATED:
        raw.pop("cluster")
    if raw.get("adapters", {}).get("preload") and kind != DEDICATED and engine_spec(kind).preloads:
        raw["adapters"] = {key: value for key, value in raw["adapters"].items() if key != "preload"}
    return scenario_from_dict(raw, f"{scenario.source} ({kind})", scenario.folder)


def _carried(scenario: Scenario, kind: str) -> dict[str, Any]:
    """The engine section for another kind."""
    fields, spec, own = engine_config(kind).model_fields, engine_spec(kind), engine_spec(scenario.engine.kind)
    given: Mapping[str, Any] = scenario.raw.get("engine", {})
    engine = {key: value for key, value in given.items() if key in SHARED_KEYS and key in fields}
    engine |= {"kind": kind, "max_model_len": scenario.engine.max_model_len}
    if not (spec.limits.queue_counts or own.limits.queue_counts) and given.get(own.limits.seqs) is not None:
        engine[spec.limits.seqs] = given[own.limits.seqs]
    engine |= spec.with_places(scenario, own.places(scenario))
    if "gpu_memory_utilization" in fields and "gpu_memory_utilization" in type(scenario.engine).model_fields:
        engine.setdefault("gpu_memory_utilization", scenario.engine.gpu_memory_utilization)
    return {key: value for key, value in engine.items() if key in fields}
