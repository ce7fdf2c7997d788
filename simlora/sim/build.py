"""From a scenario to a simulation."""

from __future__ import annotations

from itertools import repeat
from typing import Any

import numpy as np

from simlora.cluster.router import NamedRouter, RoundRobin, Router
from simlora.engines.base import Engine
from simlora.engines.fit import require_fit
from simlora.engines.inputs import InitialAdapters, Inputs
from simlora.engines.pricing import scenario_latency
from simlora.engines.registry import engine_spec
from simlora.engines.request import Request
from simlora.engines.vllm.lanes import VllmLanes
from simlora.latency.store import calibration_sha256
from simlora.scenario.cluster import router_class
from simlora.scenario.lora_modules import adapter_bytes
from simlora.scenario.root import Scenario
from simlora.sim import dedicated
from simlora.sim.clock import Clock
from simlora.sim.pipeline import PipelineReplica
from simlora.sim.replica import Replica
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


def make_requests(inputs: Inputs) -> list[Request]:
    """The request stream as objects the engines can carry."""
    table, prefix = inputs.requests, inputs.requests.prefix
    if not inputs.scenario.engine.enable_prefix_caching:
        prefix = None
    merged = inputs.dedicated is not None  # then the engine knows of no adapter
    adapter = np.zeros_like(table.adapter) if merged else table.adapter
    n = len(table)
    columns = (table.arrival_s, adapter, inputs.adapters.rank[adapter], table.prompt_tokens, table.output_tokens)
    lists = [column.tolist() for column in columns]
    return list(map(Request, range(n), *lists, repeat(None, n) if prefix is None else prefix))


def make_engine(inputs: Inputs) -> Engine:
    """One replica's engine."""
    return engine_spec(inputs.scenario.engine.kind).build(inputs)


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


def make_replicas(inputs: Inputs, clock: Clock, coalesce: bool) -> list[Replica]:
    return [_make_replica(i, make_engine(inputs), inputs, clock, coalesce) for i in range(num_replicas(inputs))]


def _make_replica(index: int, engine: Engine, inputs: Inputs, clock: Clock, coalesce: bool) -> Replica:
    kind = PipelineReplica if isinstance(engine, VllmLanes) else Replica
    return kind(index, engine, inputs.latency, clock, coalesce)  # type: ignore[arg-type]


def load_bytes(inputs: Inputs, replica: Replica) -> int:
    """Host-to-device bytes of a replica's loads (what tensor-parallel workers copy twice counted once)."""
    model, modules = inputs.scenario.model_spec, inputs.latency.adapter_modules
    loads = replica.engine.counters().loads_by_rank.items()
    return inputs.latency.profile.crossings * sum(n * adapter_bytes(model, rank, modules) for rank, n in loads)


def calibration_record(inputs: Inputs) -> dict[str, Any]:
    """Id, digest, provenance and notes of the calibration that prices the run."""
    calibration = inputs.latency.calibration
    return {
        "id": calibration.id,
        "sha256": calibration_sha256(calibration),
        "provenance": calibration.provenance.model_dump(mode="json"),
        "notes": list(calibration.notes),
    }
