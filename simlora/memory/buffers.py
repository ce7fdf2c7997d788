"""Memory of Punica and of the naive baselines: weights, buffers for whole adapters, KV pages.

Punica's code (591b598) creates adapters outside any pool and pages one by one; here the buffers are set apart first and
the pages share what is left of gpu_memory_utilization. It sizes every projection as if keys and values were as wide as
the hidden state (11 h + 3 f elements per layer and rank); here each has its own width, the same for multi-head models.
"""

from __future__ import annotations

from simlora.memory.inputs import MemoryInputs, activation_part, context_part, weight_part
from simlora.memory.ledger import ADAPTERS, AdapterRoom, EngineLedger, Part
from simlora.memory.tensors import Shard, adapter_shard_bytes
from simlora.scenario.lora_modules import ALL_LINEAR

_WORDS = {
    "punica": ("adapter buffers", "pages"),
    "grouped": ("adapters", "blocks"),
    "sequential": ("adapters", "blocks"),
    "merged-swap": ("merged adapter", "blocks"),
}


def naive_ledger(inputs: MemoryInputs) -> EngineLedger:
    """The GPU of the pipeline stage with the fewest blocks."""
    stages = inputs.shards(inputs.engine.block_size, inputs.largest_rank)
    return min((_stage(inputs, shard) for shard in stages), key=lambda ledger: ledger.kv_units)


def adapter_modules(kind: str, modules: tuple[str, ...]) -> tuple[str, ...]:
    """Modules that a buffer holds: Punica has all seven linear layers in each."""
    return ALL_LINEAR if kind == "punica" else modules


def _stage(inputs: MemoryInputs, shard: Shard) -> EngineLedger:
    engine, rank = inputs.engine, inputs.largest_rank
    label, unit_name = _WORDS[engine.kind]
    modules = adapter_modules(engine.kind, inputs.modules)
    slots = engine.max_loras if rank else 0
    one = adapter_shard_bytes(inputs.model, rank, modules, inputs.tp)
    note = f"{slots} of rank {rank}, {one / 1e6:.1f} MB each" if rank else "no adapters"
    parts = (
        weight_part(shard),
        Part(label, ADAPTERS, slots * one, note),
        activation_part(shard, inputs.gpu),
        context_part(shard),
    )
    budget = int(inputs.total_bytes * engine.gpu_memory_utilization)
    left = budget - sum(part.bytes for part in parts)
    return EngineLedger(
        kind=engine.kind,
        model=inputs.model,
        gpu=inputs.gpu,
        total_bytes=inputs.total_bytes,
        budget_bytes=budget,
        parts=parts,
        kv_unit_bytes=shard.kv_block_bytes,
        kv_unit_tokens=engine.block_size,
        kv_units=max(left, 0) // shard.kv_block_bytes,
        kv_label="KV cache",
        unit_name=unit_name,
        adapter_room=AdapterRoom(slots, 0, False, slots * one),
        adapter_need=None,
        adapter_modules=modules,
        needed_kv_tokens=engine.max_model_len,
        host_bytes=inputs.host_bytes(modules, inputs.tp),
    )
