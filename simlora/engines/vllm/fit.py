"""Why a vLLM replica does not start, which term of the ledger binds, and what would fit instead."""

from __future__ import annotations

from collections.abc import Iterator

from simlora.engines.vllm.ledger import VllmLedger
from simlora.memory.shortage import CONTEXT, OVERRIDE, SLOTS, UTILIZATION, WEIGHTS, Shortage, gb, largest_that
from simlora.scenario.root import Scenario

_MAX_TP = 64


def vllm_shortages(scenario: Scenario, ledger: VllmLedger) -> Iterator[Shortage]:
    """See EngineSpec.shortages."""
    yield shortage(ledger)


def shortage(ledger: VllmLedger) -> Shortage:
    """What keeps a ledger that does not fit from doing so."""
    if ledger.budget_bytes > ledger.total_bytes - ledger.context_bytes:
        return _utilization_shortage(ledger)
    overridden = ledger.settings.num_gpu_blocks_override is not None
    if overridden and ledger.with_settings(num_gpu_blocks_override=None).fits:
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
    return largest_that(1, ledger.settings.max_loras, lambda slots: ledger.with_settings(max_loras=slots).fits)


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
    enough = next((t for t in degrees if ledger.with_settings(tensor_parallel_size=t).fits), None)
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
