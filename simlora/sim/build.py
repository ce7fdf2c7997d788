"""From a scenario to a simulation."""

from __future__ import annotations

from typing import Any

import numpy as np

from simlora.cluster.router import NamedRouter, RoundRobin, Router
from simlora.engines.fit import require_fit
from simlora.engines.inputs import InitialAdapters, Inputs
from simlora.engines.pricing import scenario_latency
from simlora.engines.registry import engine_spec
from simlora.engines.request import Request, Requests
from simlora.engines.request_columns import RequestColumns
from simlora.latency.store import calibration_sha256
from simlora.scenario.cluster import router_class
from simlora.scenario.lora_modules import adapter_bytes
from simlora.scenario.root import Scenario
from simlora.sim import dedicated
from simlora.sim.replica import EngineReplica
from simlora.workload.adapter_table import AdapterTable, build_adapters
from simlora.workload.request_table import RequestTable
from simlora.workload.requests import build_requests


def build_inputs(
    scenario: Scenario,
    adapters: AdapterTable | None = None,
    requests: RequestTable | None = None,
    initial: InitialAdapters | None = None,
    step_scale: float = 1.0,
) -> Inputs:
    """Resolve a scenario. step_scale multiplies every step time (sensitivity). Raises ConfigError."""
    adapters = adapters or build_adapters(scenario)
    requests = requests or build_requests(scenario, adapters)
    original = scenario if scenario.cluster.topology == "dedicated" else None
    if original is not None:
        scenario = dedicated.deployment_scenario(original)
    latency = scenario_latency(scenario, step_scale)
    initial = initial or initial_adapters(scenario)
    return Inputs(scenario, adapters, requests, require_fit(scenario), latency, initial, original)


def initial_adapters(scenario: Scenario) -> InitialAdapters:
    """What registering all adapters at start leaves resident (adapters.preload): the last ones that fit each tier."""
    config, engine = scenario.adapters, scenario.engine
    if not config.preload:
        return InitialAdapters()
    order = [adapter for adapter in range(config.count, 0, -1) if adapter not in config.pinned]
    slots, host = (places - len(config.pinned) for places in (engine.max_loras, engine.max_cpu_loras))
    slots = slots if engine.registered_on_gpu else 0
    return InitialAdapters(tuple(order[len(order) - min(slots, len(order)) :]), tuple(order[-host:]))


def make_requests(inputs: Inputs) -> RequestColumns | Requests:
    """The request stream, in the form that the engine takes."""
    table = inputs.requests
    merged = inputs.dedicated is not None  # then the engine knows of no adapter
    adapter = np.zeros_like(table.adapter) if merged else table.adapter
    columns = table.arrival_s, adapter, inputs.adapters.rank[adapter], table.prompt_tokens, table.output_tokens
    arrival_s, adapters, ranks, prompt_tokens, output_tokens = (column.tolist() for column in columns)
    engine = inputs.scenario.engine
    if engine_spec(engine.kind).build_replica is not None:
        prefix = table.prefix if engine.enable_prefix_caching else None
        return RequestColumns(arrival_s, adapters, ranks, prompt_tokens, output_tokens, prefix)
    lists = arrival_s, adapters, ranks, prompt_tokens, output_tokens
    return Requests(list(map(Request, range(len(table)), *lists)))


def make_router(inputs: Inputs) -> Router:
    """The cluster's routing policy. With one replica every policy is the same."""
    if inputs.dedicated is not None:
        return dedicated.make_router(inputs, inputs.dedicated, num_replicas(inputs))
    cluster = inputs.scenario.cluster
    if cluster.replicas == 1:
        return RoundRobin(1)
    named: type[NamedRouter] = router_class(cluster.router.kind)
    return named.build(inputs)


def num_replicas(inputs: Inputs) -> int:
    """Replicas of the cluster, or deployments of the tenants."""
    if inputs.dedicated is not None:
        return dedicated.tenants(inputs.adapters, inputs.requests)
    return inputs.scenario.cluster.replicas


def make_replicas(inputs: Inputs, requests: RequestColumns | Requests, coalesce: bool) -> list[Any]:
    """All replicas of the cluster, over the requests that make_requests made."""
    spec, indices = engine_spec(inputs.scenario.engine.kind), range(num_replicas(inputs))
    if isinstance(requests, RequestColumns):
        assert spec.build_replica is not None
        return [spec.build_replica(inputs, index, requests, coalesce) for index in indices]
    assert spec.build is not None
    return [EngineReplica(index, spec.build(inputs), inputs.latency, requests, coalesce) for index in indices]


def load_bytes(inputs: Inputs, replica: Any) -> int:
    """Host-to-device bytes of a replica's loads (what tensor-parallel workers copy twice counted once)."""
    model, modules = inputs.scenario.model_spec, inputs.latency.adapter_modules
    loads = replica.engine.counters().loads_by_rank.items()
    return int(inputs.latency.profile.crossings * sum(n * adapter_bytes(model, rank, modules) for rank, n in loads))


def calibration_record(inputs: Inputs) -> dict[str, Any]:
    """Id, digest, provenance and notes of the calibration that prices the run."""
    calibration = inputs.latency.calibration
    return {
        "id": calibration.id,
        "sha256": calibration_sha256(calibration),
        "provenance": calibration.provenance.model_dump(mode="json"),
        "notes": list(calibration.notes),
    }
