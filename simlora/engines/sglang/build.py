"""The parts of an SGLang replica."""

from __future__ import annotations

from typing import Any

from simlora.engines.inputs import Inputs
from simlora.engines.sglang.budget import TokenRatio
from simlora.engines.sglang.drainer import Drainer
from simlora.engines.sglang.engine import SglangEngine, SglangLimits
from simlora.engines.sglang.overlap import OverlapLoader
from simlora.engines.sglang.slots import SlotPool
from simlora.latency.step import REMOTE
from simlora.memory.copies import CopyEngine, Stage
from simlora.scenario.engines.sglang import SglangConfig
from simlora.scenario.lora_modules import adapter_bytes

HOST_LINK, REMOTE_LINK = "host", "remote"


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
        _loader(inputs) if slots and engine.adapter_loading.overlap else None,
        lambda rank: sum(_fetch_s(inputs, stage) for stage in _remote(inputs, rank)),
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


def _loader(inputs: Inputs) -> OverlapLoader:
    latency: Any = inputs.latency
    transfers, remote = latency.transfers, inputs.scenario.storage.remote
    links = dict(transfers.links())
    if remote is not None:
        links[REMOTE_LINK] = remote.bandwidth_gib_s * 2**30

    def stages(rank: int, tier: str) -> tuple[Stage, ...]:
        fetched = _remote(inputs, rank) if tier == REMOTE else ()
        return (*fetched, *(Stage(*leg) for leg in transfers.stages(rank, tier)))

    copies = CopyEngine(links, compute_slowdown=latency.copying_slowdown, device_link=HOST_LINK)
    return OverlapLoader(copies, stages, HOST_LINK)


def _remote(inputs: Inputs, rank: int) -> tuple[Stage, ...]:
    """From remote storage to the disk."""
    scenario, remote = inputs.scenario, inputs.scenario.storage.remote
    if remote is None:
        return ()
    size_bytes = adapter_bytes(scenario.model_spec, rank, scenario.adapter_modules)
    return (Stage(REMOTE_LINK, size_bytes, remote.latency_s),)


def _fetch_s(inputs: Inputs, stage: Stage) -> float:
    remote = inputs.scenario.storage.remote
    assert remote is not None
    return stage.latency_s + stage.size_bytes / (remote.bandwidth_gib_s * 2**30)
