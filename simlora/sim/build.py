"""From a scenario to a simulation."""

from __future__ import annotations

from itertools import repeat
from typing import Any

from simlora.cluster.router import LeastRequests, LoraAffinity, RoundRobin, Router
from simlora.engines.base import Engine
from simlora.engines.request import Request
from simlora.latency.model import StepLatency
from simlora.latency.store import calibration_sha256, choose_calibration
from simlora.memory.fit import require_fit
from simlora.scenario import Scenario, adapter_bytes
from simlora.sim.clock import Clock
from simlora.sim.inputs import InitialAdapters, Inputs
from simlora.sim.replica import Replica
from simlora.sim.wiring import ENGINES
from simlora.workload.adapters import AdapterTable, build_adapters
from simlora.workload.requests import RequestTable, build_requests


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
    calibration = choose_calibration(scenario.gpu_spec, scenario.engine, scenario.calibration)
    modules = scenario.slot_modules, scenario.adapter_modules
    latency = StepLatency(scenario.model_spec, scenario.gpu_spec, scenario.engine, calibration, step_scale, *modules)
    initial = initial or initial_adapters(scenario)
    return Inputs(scenario, adapters, requests, require_fit(scenario), latency, initial)


def initial_adapters(scenario: Scenario) -> InitialAdapters:
    """What registering all adapters at start leaves resident (adapters.preload): the last ones that fit each tier."""
    config, engine = scenario.adapters, scenario.engine
    if not config.preload:
        return InitialAdapters()
    order = [adapter for adapter in range(config.count, 0, -1) if adapter not in config.pinned]
    slots, host = (places - len(config.pinned) for places in (engine.max_loras, engine.max_cpu_loras))
    return InitialAdapters(tuple(order[len(order) - min(slots, len(order)) :]), tuple(order[-host:]))


def make_requests(inputs: Inputs) -> list[Request]:
    """The request stream as objects the engines can carry."""
    table, prefix = inputs.requests, inputs.requests.prefix
    if not inputs.scenario.engine.enable_prefix_caching:
        prefix = None
    ranks = inputs.adapters.rank[table.adapter]
    n = len(table)
    columns = (table.arrival_s, table.adapter, ranks, table.prompt_tokens, table.output_tokens)
    lists = [column.tolist() for column in columns]
    return list(map(Request, range(n), *lists, repeat(None, n) if prefix is None else prefix))


def make_engine(inputs: Inputs) -> Engine:
    """One replica's engine."""
    return ENGINES[inputs.scenario.engine.kind](inputs)


def make_router(scenario: Scenario) -> Router:
    """The cluster's routing policy. With one replica every policy is the same."""
    config, replicas = scenario.cluster.router, scenario.cluster.replicas
    if replicas == 1 or config.kind == "round-robin":
        return RoundRobin(replicas)
    return LeastRequests() if config.kind == "least-requests" else LoraAffinity()


def make_replicas(inputs: Inputs, clock: Clock, coalesce: bool) -> list[Replica]:
    return [
        Replica(i, make_engine(inputs), inputs.latency, clock, coalesce)
        for i in range(inputs.scenario.cluster.replicas)
    ]


def load_bytes(inputs: Inputs, replica: Replica) -> int:
    """Host-to-device bytes of a replica's loads (what tensor-parallel workers copy twice counted once)."""
    scenario = inputs.scenario
    loads = replica.engine.counters().loads_by_rank.items()
    return sum(n * adapter_bytes(scenario.model_spec, rank, scenario.adapter_modules) for rank, n in loads)


def calibration_record(inputs: Inputs) -> dict[str, Any]:
    """Id, digest, provenance and notes of the calibration that prices the run."""
    calibration = inputs.latency.calibration
    return {
        "id": calibration.id,
        "sha256": calibration_sha256(calibration),
        "provenance": calibration.provenance.model_dump(mode="json"),
        "notes": list(calibration.notes),
    }
