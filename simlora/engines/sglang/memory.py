"""SGLang's memory: weights, slots and KV cache from one static share; activations and graphs from the rest.

Source: python/sglang/srt/{server_args.py, model_executor/model_runner.py, lora/mem_pool.py} (2026).
"""

from __future__ import annotations

from simlora.memory.inputs import MemoryInputs, activation_part, context_part, graph_part, weight_part
from simlora.memory.ledger import ADAPTERS, AdapterRoom, EngineLedger, Part
from simlora.memory.tensors import Shard, slot_bytes, slot_tensors


def capture_batches(cuda_graph_max_bs: int) -> tuple[int, ...]:
    """Batch sizes with a CUDA graph: `ServerArgs._generate_cuda_graph_batch_sizes`."""
    steps = (1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, cuda_graph_max_bs + 1, 32))
    sizes = [size for size in steps if size <= cuda_graph_max_bs]
    return tuple(sizes if cuda_graph_max_bs in sizes else [*sizes, cuda_graph_max_bs])


def sglang_ledger(inputs: MemoryInputs) -> EngineLedger:
    """The GPU of the pipeline stage with the fewest tokens."""
    engine = inputs.engine
    stages = inputs.shards(1, engine.max_lora_rank if engine.enable_lora else 0, engine.max_loras_per_batch)
    return min((_stage(inputs, shard) for shard in stages), key=lambda ledger: ledger.kv_units)


def _stage(inputs: MemoryInputs, shard: Shard) -> EngineLedger:
    engine, total = inputs.engine, inputs.total_bytes
    graphs = 0 if engine.disable_cuda_graph else len(capture_batches(engine.cuda_graph_max_bs))
    context = context_part(shard, in_budget=False)
    slots = sum(slot_tensors(shard))
    parts = (
        weight_part(shard),
        Part("LoRA slots", ADAPTERS, slots, _slot_note(inputs, shard)),
        activation_part(shard, inputs.gpu, in_budget=False),
        graph_part(shard, *((0, graphs) if engine.enable_lora else (graphs, 0)), in_budget=False),
        context,
    )
    budget = int((total - context.bytes) * engine.mem_fraction_static)
    left = budget - sum(part.bytes for part in parts if part.in_budget)
    return EngineLedger(
        kind="sglang",
        model=inputs.model,
        gpu=inputs.gpu,
        total_bytes=total,
        budget_bytes=budget,
        parts=parts,
        kv_unit_bytes=shard.kv_block_bytes,
        kv_unit_tokens=1,
        kv_units=max(left, 0) // shard.kv_block_bytes,
        kv_label="KV cache",
        unit_name="tokens",
        adapter_room=AdapterRoom(engine.max_loras_per_batch if engine.enable_lora else 0, 0, False, slots),
        adapter_need=None,
        adapter_modules=inputs.modules,
        needed_kv_tokens=engine.max_model_len,
        host_bytes=inputs.host_bytes(inputs.modules, inputs.tp, engine.max_loaded_loras),
    )


def _slot_note(inputs: MemoryInputs, shard: Shard) -> str:
    engine = inputs.engine
    if not engine.enable_lora:
        return "LoRA off"
    size = f"{slot_bytes(shard) / 1e6:.1f} MB each, empty or not"
    return f"{engine.max_loras_per_batch} of rank {engine.max_lora_rank}, the base model's included, {size}"
