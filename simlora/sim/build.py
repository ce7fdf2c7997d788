"""From a scenario to a simulation: the one place that knows which parts make up a replica."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat
from typing import Any

from simlora.cluster.router import LeastRequests, LoraAffinity, RoundRobin, Router
from simlora.engines.decode_batch import DecodeBatch
from simlora.engines.prefix_cache import PrefixCache
from simlora.engines.request import Request
from simlora.engines.speculative import SpeculativeBatch
from simlora.engines.vllm import VllmEngine, VllmLimits
from simlora.engines.vllm_versions import RULES
from simlora.errors import ConfigError
from simlora.latency.model import StepLatency
from simlora.latency.store import calibration_sha256, choose_calibration
from simlora.memory.eviction import EvictionPolicy, Lru, WeightedLru
from simlora.memory.fit import require_fit
from simlora.memory.ledger import MemoryLedger
from simlora.memory.resident import ResidentSet
from simlora.memory.tiers import AdapterTiers
from simlora.scenario import Scenario, adapter_bytes
from simlora.sim.clock import Clock
from simlora.sim.replica import Replica
from simlora.workload.adapters import AdapterTable, build_adapters
from simlora.workload.requests import RequestTable, build_requests


@dataclass(frozen=True)
class InitialAdapters:
    """Adapters resident when the run begins, oldest first, besides the pinned ones."""

    gpu: tuple[int, ...] = ()
    host: tuple[int, ...] = ()


@dataclass(frozen=True)
class Inputs:
    """Everything a simulation is built from."""

    scenario: Scenario
    adapters: AdapterTable
    requests: RequestTable
    ledger: MemoryLedger
    latency: StepLatency
    initial: InitialAdapters


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


def make_engine(inputs: Inputs) -> VllmEngine:
    """One vLLM replica."""
    scenario, engine = inputs.scenario, inputs.scenario.engine
    lora = engine.enable_lora and inputs.adapters.count > 0
    limits = VllmLimits(
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        kv_blocks=inputs.ledger.kv_blocks - 1,
        block_size=engine.block_size,
        max_loras=engine.max_loras if engine.enable_lora else 0,
        max_lora_rank=engine.max_lora_rank,
        async_scheduling=engine.async_scheduling,
        enable_chunked_prefill=engine.enable_chunked_prefill,
        reserve_full_prompt=RULES[engine.version].reserve_full_prompt,
        skipped_first=RULES[engine.version].skipped_first,
        pinned=frozenset(scenario.adapters.pinned) if lora else frozenset(),
    )
    tiers = _tiers(inputs) if lora else None
    cache = None
    if engine.enable_prefix_caching and inputs.requests.prefix is not None:
        cache = PrefixCache(inputs.requests.prefix_block_tokens, engine.block_size)
    return VllmEngine(limits, tiers, _decodes(scenario), cache)


def _decodes(scenario: Scenario) -> DecodeBatch:
    engine = scenario.engine
    if engine.speculative is None:
        return DecodeBatch(engine.block_size)
    draft = engine.speculative.num_speculative_tokens
    needed = engine.max_num_seqs * (1 + draft)
    if engine.max_num_batched_tokens < needed:
        allowed = f"at least max_num_seqs ({engine.max_num_seqs}) x (1 + num_speculative_tokens) = {needed}"
        raise ConfigError(scenario.source, "engine.max_num_batched_tokens", engine.max_num_batched_tokens, allowed)
    return SpeculativeBatch(engine.block_size, draft, engine.speculative.acceptance_rate, scenario.seed)


def _tiers(inputs: Inputs) -> AdapterTiers:
    """Slots and host cache; pinned adapters are loaded before the run begins."""
    scenario, engine = inputs.scenario, inputs.scenario.engine
    pinned, initial = scenario.adapters.pinned, inputs.initial
    slots = ResidentSet(engine.max_loras, _eviction(engine.eviction), pinned)
    tiers = AdapterTiers(
        slots,
        ResidentSet(engine.max_cpu_loras, _eviction(engine.eviction), pinned),
        scenario.storage.remote is not None,
    )
    tiers.preload(initial.host, [a for a in initial.gpu if a not in pinned] + list(pinned))
    return tiers


def _eviction(kind: str) -> EvictionPolicy:
    return WeightedLru() if kind == "weighted-lru" else Lru()


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
    loads = replica.engine.loads_by_rank.items()
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
