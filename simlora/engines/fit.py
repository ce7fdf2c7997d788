"""Whether a scenario's replica starts, which term of the ledger binds, and what would fit instead."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from simlora.engines.shortages import engine_ledger, engine_shortage
from simlora.engines.vllm.ledger import VllmLedger, compute_ledger
from simlora.errors import ConfigError
from simlora.memory.inputs import MemoryInputs
from simlora.memory.ledger import EngineLedger
from simlora.memory.shortage import CONTEXT, OVERRIDE, SLOTS, UTILIZATION, WEIGHTS, Shortage, gb, largest_that
from simlora.memory.tensors import settings_of

if TYPE_CHECKING:
    from simlora.scenario.root import Scenario


AnyLedger = VllmLedger | EngineLedger
"""The ledger of a replica of any kind of engine."""

_MAX_TP = 64


def build_ledger(scenario: Scenario) -> AnyLedger:
    """The ledger of one GPU of the scenario's replicas, whether or not it fits."""
    return vllm_ledger(scenario) if scenario.engine.kind == "vllm" else engine_ledger(MemoryInputs.of(scenario))


def vllm_ledger(scenario: Scenario) -> VllmLedger:
    """The ledger of a scenario with engine kind vllm."""
    return compute_ledger(
        scenario.model_spec,
        scenario.gpu_spec,
        settings_of(scenario),
        scenario.adapters.rank_counts() if scenario.engine.enable_lora else {},
        scenario.adapter_modules,
        scenario.source,
    )


def require_fit(scenario: Scenario) -> AnyLedger:
    """The ledger, or ConfigError naming what binds and the largest value that fits."""
    ledger = build_ledger(scenario)
    problem = scenario_shortage(scenario, ledger)
    if problem is not None:
        raise ConfigError(scenario.source, problem.key, problem.value, problem.message)
    return ledger


def scenario_shortage(scenario: Scenario, ledger: AnyLedger) -> Shortage | None:
    """What keeps the scenario's replicas from starting; None if they start. ledger: of that scenario."""
    if isinstance(ledger, VllmLedger):
        return shortage(ledger)
    return None if ledger.fits else engine_shortage(scenario)


def fits(ledger: VllmLedger) -> bool:
    """vLLM's own conditions: the budget is free at start-up, one sequence of max_model_len fits the KV cache, and
    weights, slots, KV cache and graphs together stay within the GPU's memory."""
    free_at_start = ledger.total_bytes - ledger.context_bytes
    enough_kv = ledger.available_bytes > 0 and ledger.kv_tokens >= ledger.settings.max_model_len
    return enough_kv and ledger.budget_bytes <= free_at_start and ledger.headroom_bytes >= 0


def shortage(ledger: VllmLedger) -> Shortage | None:
    """What keeps the engine from starting; None if it starts."""
    if fits(ledger):
        return None
    if ledger.budget_bytes > ledger.total_bytes - ledger.context_bytes:
        return _utilization_shortage(ledger)
    overridden = ledger.settings.num_gpu_blocks_override is not None
    if overridden and fits(with_settings(ledger, num_gpu_blocks_override=None)):
        return _override_shortage(ledger)
    slots = largest_max_loras(ledger)
    if slots is not None:
        return _slot_shortage(ledger, slots)
    if ledger.available_bytes >= ledger.kv_block_bytes:
        return _context_shortage(ledger)
    return _weight_shortage(ledger)


def largest_max_loras(ledger: VllmLedger) -> int | None:
    """The largest max_loras up to the ledger's own that fits, everything else equal; None if not even one slot fits."""
    if not ledger.settings.enable_lora:
        return None
    return largest_that(1, ledger.settings.max_loras, lambda slots: fits(with_settings(ledger, max_loras=slots)))


def with_settings(ledger: VllmLedger, **changes: object) -> VllmLedger:
    """The ledger of the same model and GPU under other settings; host_bytes is not recomputed."""
    settings = replace(ledger.settings, **changes)  # type: ignore[arg-type]
    return compute_ledger(ledger.model, ledger.gpu, settings, None, ledger.adapter_modules)


def _slot_shortage(ledger: VllmLedger, largest: int) -> Shortage:
    settings = ledger.settings
    text = (
        f"LoRA slots bind: {settings.max_loras} slots of rank {settings.max_lora_rank} take {gb(ledger.slots_bytes)} "
        f"on each GPU beside {gb(ledger.weight_bytes)} of weights, and the engine may use {gb(ledger.budget_bytes)}; "
        f"{_kv_state(ledger)}; largest max_loras that fits: {largest}"
    )
    if 0 < ledger.kv_tokens < settings.max_model_len and ledger.available_bytes > 0:
        text += f" (or max_model_len up to {ledger.usable_kv_tokens})"
    return Shortage(SLOTS, "engine.max_loras", settings.max_loras, largest, text)


def _context_shortage(ledger: VllmLedger) -> Shortage:
    largest = ledger.usable_kv_tokens
    text = f"context length binds: {_kv_state(ledger)}; largest max_model_len that fits: {largest}"
    return Shortage(CONTEXT, "engine.max_model_len", ledger.settings.max_model_len, largest, text)


def _override_shortage(ledger: VllmLedger) -> Shortage:
    settings = ledger.settings
    needed = -(-settings.max_model_len // settings.block_size)
    largest = (ledger.headroom_bytes + ledger.kv_bytes) // ledger.kv_block_bytes
    text = (
        f"between {needed} (one sequence of max_model_len {settings.max_model_len}) and {largest} (what the GPU "
        f"holds); null takes the {ledger.fitting_kv_blocks} that fit the engine's share"
    )
    return Shortage(OVERRIDE, "engine.num_gpu_blocks_override", settings.num_gpu_blocks_override, largest, text)


def _weight_shortage(ledger: VllmLedger) -> Shortage:
    settings = ledger.settings
    degrees = [t for t in _degrees(ledger) if t > settings.tensor_parallel_size]
    enough = next((t for t in degrees if fits(with_settings(ledger, tensor_parallel_size=t))), None)
    hint = f"smallest tensor_parallel_size that fits: {enough}" if enough else "no tensor_parallel_size fits"
    text = (
        f"weights bind: {gb(ledger.weight_bytes)} on each GPU and {gb(ledger.activation_bytes)} of activations, and "
        f"the engine may use {gb(ledger.budget_bytes)}; {hint}"
    )
    return Shortage(WEIGHTS, "engine.tensor_parallel_size", settings.tensor_parallel_size, enough, text)


def _utilization_shortage(ledger: VllmLedger) -> Shortage:
    largest = int(1000 * (ledger.total_bytes - ledger.context_bytes) / ledger.total_bytes) / 1000
    text = (
        f"the engine starts only if that share of {gb(ledger.total_bytes)} is free, and CUDA itself takes "
        f"{gb(ledger.context_bytes)}; largest that fits: {largest}"
    )
    value = ledger.settings.gpu_memory_utilization
    return Shortage(UTILIZATION, "engine.gpu_memory_utilization", value, largest, text)


def _degrees(ledger: VllmLedger) -> list[int]:
    """Tensor-parallel degrees that divide the attention heads."""
    return [t for t in (2**power for power in range(7)) if t <= _MAX_TP and ledger.model.num_attention_heads % t == 0]


def _kv_state(ledger: VllmLedger) -> str:
    if ledger.available_bytes <= 0:
        return f"the KV cache lacks {gb(-ledger.available_bytes)}"
    if ledger.kv_tokens < ledger.settings.max_model_len:
        return f"the KV cache holds {ledger.kv_tokens} tokens, fewer than max_model_len {ledger.settings.max_model_len}"
    return f"the GPU's {gb(ledger.total_bytes)} lack {gb(-ledger.headroom_bytes)}"
