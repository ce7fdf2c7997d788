"""The ledger as a table and as one sentence."""

from __future__ import annotations

from typing import NamedTuple

from simlora.memory.fit import gb, shortage
from simlora.memory.ledger import MemoryLedger


class LedgerRow(NamedTuple):
    """One line: bytes on one GPU and their share of its memory."""

    label: str
    bytes: int
    share: float
    note: str


def ledger_rows(ledger: MemoryLedger) -> list[LedgerRow]:
    """Rows that add up to the GPU's memory as CUDA reports it; the last one is negative if the engine cannot start."""
    settings = ledger.settings
    kv_blocks = ledger.kv_blocks
    entries = [
        ("weights", ledger.weight_bytes, f"{ledger.model.name}, tensor_parallel_size {settings.tensor_parallel_size}"),
        ("LoRA slots", ledger.slots_bytes, _slot_note(ledger)),
        ("allocator rounding", ledger.rounding_bytes, "PyTorch blocks larger than the tensors in them"),
        ("activations", ledger.activation_bytes, _activation_note(ledger)),
        ("CUDA graphs", ledger.graph_bytes, "from the budget" if ledger.graphs_in_budget else "outside the budget"),
        ("CUDA, NCCL", ledger.non_torch_bytes + ledger.context_bytes, f"{gb(ledger.non_torch_bytes)} from the budget"),
        ("KV cache", ledger.kv_bytes, f"{kv_blocks} blocks of {settings.block_size} tokens: {ledger.kv_tokens} tokens"),
        ("free", ledger.headroom_bytes, f"gpu_memory_utilization {settings.gpu_memory_utilization:g}"),
    ]
    return [LedgerRow(label, size, size / ledger.total_bytes, note) for label, size, note in entries]


def binding(ledger: MemoryLedger) -> str:
    """What limits the replica: why it does not start, or what takes the most from the KV cache."""
    problem = shortage(ledger)
    if problem is not None:
        return f"does not fit: {problem.message}"
    takers = {
        "weights": ledger.weight_bytes,
        "LoRA slots": ledger.slots_bytes,
        "activations": ledger.activation_bytes,
        "CUDA graphs": ledger.graph_bytes if ledger.graphs_in_budget else 0,
    }
    label = max(takers, key=lambda name: takers[name])
    return (
        f"{label} take {takers[label] / ledger.budget_bytes:.0%} of the {gb(ledger.budget_bytes)} that the engine may "
        f"use; the KV cache gets {ledger.kv_bytes / ledger.budget_bytes:.0%}, {ledger.kv_tokens} tokens"
    )


def _slot_note(ledger: MemoryLedger) -> str:
    settings = ledger.settings
    if not settings.enable_lora:
        return "LoRA off"
    return f"{settings.max_loras} of rank {settings.max_lora_rank}, {ledger.slot_bytes / 1e6:.1f} MB each, empty or not"


def _activation_note(ledger: MemoryLedger) -> str:
    settings = ledger.settings
    return f"peak at {settings.max_num_batched_tokens} tokens and {settings.max_num_seqs} sequences"
