"""The dedicated topology: which deployment serves whom, and what each is paid for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from simlora.cluster.dedicated import NEVER_S, Dedicated
from simlora.engines.inputs import Inputs
from simlora.scenario.load import scenario_from_dict
from simlora.scenario.root import Scenario
from simlora.workload.adapter_table import AdapterTable
from simlora.workload.request_table import RequestTable


def deployment_scenario(scenario: Scenario) -> Scenario:
    """What one tenant's deployment runs: the scenario's engine with LoRA off, the adapter merged into the weights."""
    raw = scenario.raw
    engine = {key: value for key, value in raw.get("engine", {}).items() if key not in _LORA_KEYS}
    raw["engine"] = {**engine, "enable_lora": False}
    raw.pop("adapters", None)
    raw.pop("cluster", None)
    workload = raw.get("workload", {})
    if workload.get("arrivals") is not None:
        workload["arrivals"] = scenario.workload.model_dump(mode="json")["arrivals"]
    return scenario_from_dict(raw, scenario.source, scenario.folder)


_LORA_KEYS = frozenset(
    {
        "max_loras", "max_lora_rank", "max_cpu_loras", "fully_sharded_loras", "specialize_active_lora",
        "lora_target_modules", "eviction", "kernels", "adapter_loading",
    }
)  # fmt: skip


def tenants(adapters: AdapterTable, requests: RequestTable) -> int:
    """Deployments: one per adapter, and one for the base model where somebody asks for it."""
    return adapters.count + int(bool(np.any(requests.adapter == 0)))


def make_router(inputs: Inputs, original: Scenario, deployments: int) -> Dedicated:
    """Adapter a goes to deployment a - 1, the base model to the last."""
    config = original.cluster.dedicated
    deployment_of = np.where(inputs.requests.adapter == 0, deployments - 1, inputs.requests.adapter - 1).tolist()
    limit_s = NEVER_S if config.scale_to_zero_s is None else config.scale_to_zero_s
    return Dedicated(deployment_of, deployments, limit_s, cold_start_s(inputs, original))


def cold_start_s(inputs: Inputs, original: Scenario) -> float:
    """Seconds from asking for GPUs to serving."""
    given = original.cluster.dedicated.cold_start_s
    return inputs.latency.engine_start_s if given is None else given


def paid_s(router: Dedicated, replicas: Sequence[Any], end_s: float) -> list[float]:
    """Seconds for which each deployment's GPUs are paid."""
    return [router.paid_s(replica.index, replica.view_at(end_s).idle_s, end_s) for replica in replicas]
