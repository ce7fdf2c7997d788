"""The ledger as a table and as one sentence."""

from __future__ import annotations

from typing import NamedTuple

from simlora.engines.fit import AnyLedger, shortage
from simlora.engines.vllm.ledger import VllmLedger
from simlora.memory.ledger import ADAPTERS, EngineLedger
from simlora.memory.shortage import Shortage, gb


class LedgerRow(NamedTuple):
    """One line: bytes on one GPU and their share of its memory."""

    label: str
    bytes: int
    share: float
    note: str


def ledger_rows(ledger: AnyLedger) -> list[LedgerRow]:
    """Rows that add up to the GPU's memory as CUDA reports it; the last one is negative if the engine cannot start."""
    entries = _engine_entries(ledger) if isinstance(ledger, EngineLedger) else _vllm_entries(ledger)
    return [LedgerRow(label, size, size / ledger.total_bytes, note) for label, size, note in entries]


def _engine_entries(ledger: EngineLedger) -> list[tuple[str, int, str]]:
    """Every part of the engine, then its KV cache and what is free."""
    parts = [(part.label, part.bytes, part.note) for part in ledger.parts if part.bytes or part.role == ADAPTERS]
    tokens = (
        "" if ledger.kv_unit_tokens == 1 else f" of {ledger.kv_unit_tokens} tokens: {ledger.usable_kv_tokens} tokens"
    )
    note = f"{ledger.kv_units} {ledger.unit_name}{tokens}"
    return [*parts, (ledger.kv_label, ledger.kv_bytes, note), ("free", ledger.headroom_bytes, "")]


def _vllm_entries(ledger: VllmLedger) -> list[tuple[str, int, str]]:
    settings = ledger.settings
    kv_blocks = ledger.kv_blocks
    return [
        ("weights", ledger.weight_bytes, f"{ledger.model.name}, tensor_parallel_size {settings.tensor_parallel_size}"),
        ("LoRA slots", ledger.slots_bytes, _slot_note(ledger)),
        ("allocator rounding", ledger.rounding_bytes, "PyTorch blocks larger than the tensors in them"),
        ("activations", ledger.activation_bytes, _activation_note(ledger)),
        ("CUDA graphs", ledger.graph_bytes, "from the budget" if ledger.graphs_in_budget else "outside the budget"),
        ("CUDA, NCCL", ledger.non_torch_bytes + ledger.context_bytes, f"{gb(ledger.non_torch_bytes)} from the budget"),
        ("KV cache", ledger.kv_bytes, f"{kv_blocks} blocks of {settings.block_size} tokens: {ledger.kv_tokens} tokens"),
        ("free", ledger.headroom_bytes, f"gpu_memory_utilization {settings.gpu_memory_utilization:g}"),
    ]


def binding(ledger: AnyLedger, problem: Shortage | None = None) -> str:
    """What limits the replica: why it does not start, or what takes the most from the KV cache.

    problem: of the ledger's scenario (scenario_shortage); found here for vLLM.
    """
    problem = shortage(ledger) if problem is None and isinstance(ledger, VllmLedger) else problem
    if problem is not None:
        return f"does not fit: {problem.message}"
    takers = _takers(ledger)
    label = max(takers, key=lambda name: takers[name])
    return (
        f"{label} take {takers[label] / ledger.budget_bytes:.0%} of the {gb(ledger.budget_bytes)} that the engine may "
        f"use; the KV cache gets {ledger.kv_bytes / ledger.budget_bytes:.0%}, {_tokens(ledger)} tokens"
    )


def _tokens(ledger: AnyLedger) -> int:
    return ledger.kv_tokens if isinstance(ledger, VllmLedger) else ledger.usable_kv_tokens


def _takers(ledger: AnyLedger) -> dict[str, int]:
    """Label -> bytes of what the budget pays for beside the KV cache."""
    if isinstance(ledger, EngineLedger):
        return {part.label: part.bytes for part in ledger.parts if part.in_budget}
    return {
        "weights": ledger.weight_bytes,
        "LoRA slots": ledger.slots_bytes,
        "activations": ledger.activation_bytes,
        "CUDA graphs": ledger.graph_bytes if ledger.graphs_in_budget else 0,
    }


def _slot_note(ledger: VllmLedger) -> str:
    settings = ledger.settings
    if not settings.enable_lora:
        return "LoRA off"
    return f"{settings.max_loras} of rank {settings.max_lora_rank}, {ledger.slot_bytes / 1e6:.1f} MB each, empty or not"


def _activation_note(ledger: VllmLedger) -> str:
    settings = ledger.settings
    return f"peak at {settings.max_num_batched_tokens} tokens and {settings.max_num_seqs} sequences"
