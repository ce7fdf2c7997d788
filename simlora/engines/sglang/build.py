"""The parts of an SGLang replica."""

from __future__ import annotations

from simlora.engines.inputs import Inputs
from simlora.engines.overlap_loading import overlap_loading
from simlora.engines.sglang.budget import TokenRatio
from simlora.engines.sglang.drainer import Drainer
from simlora.engines.sglang.engine import SglangEngine, SglangLimits
from simlora.engines.sglang.slots import SlotPool
from simlora.scenario.engines.sglang import SglangConfig
from simlora.scenario.lora_modules import adapter_bytes


def make_engine(inputs: Inputs) -> SglangEngine:
    """One replica. Pinned adapters are in their slots when the run begins."""
    scenario, engine = inputs.scenario, inputs.scenario.engine
    assert isinstance(engine, SglangConfig)
    slots = inputs.ledger.adapter_room.slots if engine.enable_lora else 0
    limits = SglangLimits(
        max_running_requests=engine.max_running_requests,
        chunked_prefill_size=engine.chunked_prefill_size,
        max_prefill_tokens=engine.max_prefill_tokens,
        kv_tokens=inputs.ledger.usable_kv_tokens,
        max_loras_per_batch=slots,
        pinned=frozenset(scenario.adapters.pinned) if slots else frozenset(),
        enable_mixed_chunk=engine.enable_mixed_chunk,
    )
    wait_s = engine.lora_drain_wait_threshold
    return SglangEngine(
        limits,
        TokenRatio.of(engine.schedule_conservativeness),
        _pool(inputs, limits, engine) if slots else None,
        Drainer(slots, wait_s) if slots and wait_s > 0 else None,
        overlap_loading(inputs) if slots and engine.adapter_loading.overlap else None,
        lambda rank: _fetch_s(inputs, rank),
    )


def _pool(inputs: Inputs, limits: SglangLimits, engine: SglangConfig) -> SlotPool:
    """Without max_loaded_loras every adapter is loaded into host memory before the run."""
    remote = inputs.scenario.storage.remote is not None
    pool = SlotPool(
        limits.max_loras_per_batch, limits.pinned, engine.lora_eviction_policy, engine.max_loaded_loras, remote
    )
    places = limits.max_loras_per_batch - 1 - len(limits.pinned)  # the base model is in one of them
    gpu = [adapter for adapter in inputs.initial.gpu if adapter not in limits.pinned]
    pool.preload(inputs.initial.host, gpu[len(gpu) - min(places, len(gpu)) :])
    return pool


def _fetch_s(inputs: Inputs, rank: int) -> float:
    """From remote storage to the disk."""
    scenario, remote = inputs.scenario, inputs.scenario.storage.remote
    if remote is None:
        return 0.0
    size_bytes = adapter_bytes(scenario.model_spec, rank, scenario.adapter_modules)
    return remote.latency_s + size_bytes / (remote.bandwidth_gib_s * 2**30)
