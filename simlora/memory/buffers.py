"""Memory of an engine that keeps whole adapters in buffers: weights, buffers of the largest rank, KV pages.

The buffers are set apart first, and the pages share what is left of gpu_memory_utilization. Each projection has its own
width. (Punica's code, 591b598, creates adapters outside any pool, pages one by one, and sizes every projection as if
keys and values were as wide as the hidden state: 11 h + 3 f elements per layer and rank, the same for multi-head
models.)
"""

from __future__ import annotations

from simlora.memory.inputs import MemoryInputs, activation_part, context_part, weight_part
from simlora.memory.ledger import ADAPTERS, AdapterRoom, EngineLedger, Part
from simlora.memory.tensors import Shard, adapter_shard_bytes


def buffer_ledger(
    inputs: MemoryInputs, label: str = "adapters", unit_name: str = "blocks", modules: tuple[str, ...] | None = None
) -> EngineLedger:
    """The GPU of the pipeline stage with the fewest blocks.

    Args:
        label: of the buffers.
        unit_name: of the KV cache's units, in the plural.
        modules: what every buffer holds; None: the adapters' modules.
    """
    words = (label, unit_name, inputs.modules if modules is None else modules)
    stages = inputs.shards(inputs.engine.block_size, inputs.largest_rank)
    return min((_stage(inputs, shard, *words) for shard in stages), key=lambda ledger: ledger.kv_units)


def _stage(inputs: MemoryInputs, shard: Shard, label: str, unit_name: str, modules: tuple[str, ...]) -> EngineLedger:
    engine, rank = inputs.engine, inputs.largest_rank
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
