"""SGLang's memory: weights, slots and KV cache from one static share; activations and graphs from the rest.

Source: python/sglang/srt/{server_args.py, model_executor/model_runner.py, lora/mem_pool.py} (2026).
"""

from __future__ import annotations

from collections.abc import Iterator

from simlora.engines.sglang.profile import captured_batches
from simlora.engines.shortages import beside_bytes, common, lowered
from simlora.memory.inputs import MemoryInputs, activation_part, context_part, graph_part, weight_part
from simlora.memory.ledger import ADAPTERS, CONTEXT, AdapterRoom, EngineLedger, Part
from simlora.memory.shortage import SLOTS, UTILIZATION, Shortage, gb
from simlora.memory.tensors import Shard, slot_bytes, slot_tensors
from simlora.scenario.root import Scenario


def sglang_ledger(inputs: MemoryInputs) -> EngineLedger:
    """The GPU of the pipeline stage with the fewest tokens."""
    engine = inputs.engine
    stages = inputs.shards(1, engine.max_lora_rank if engine.enable_lora else 0, engine.max_loras_per_batch)
    return min((_stage(inputs, shard) for shard in stages), key=lambda ledger: ledger.kv_units)


def _stage(inputs: MemoryInputs, shard: Shard) -> EngineLedger:
    engine, total = inputs.engine, inputs.total_bytes
    graphs = len(captured_batches(engine))
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


def sglang_shortages(scenario: Scenario, ledger: EngineLedger) -> Iterator[Shortage | None]:
    """See EngineSpec.shortages."""
    if ledger.budget_bytes > ledger.total_bytes - beside_bytes(ledger):
        yield _static_share(scenario, ledger)
    yield lowered(scenario, ledger, SLOTS, "max_loras_per_batch")
    yield from common(scenario, ledger)


def _static_share(scenario: Scenario, ledger: EngineLedger) -> Shortage | None:
    """The static share leaves too little for the rest."""
    beside = beside_bytes(ledger)
    most = int(1000 * (ledger.total_bytes - beside) / (ledger.total_bytes - ledger.role_bytes(CONTEXT))) / 1000
    if most <= 0:
        return None
    text = (
        f"the static share and {gb(beside)} of activations, graphs and CUDA context exceed the GPU's "
        f"{gb(ledger.total_bytes)}; largest that fits: {most:g}"
    )
    value = scenario.engine.gpu_memory_utilization
    return Shortage(UTILIZATION, "engine.mem_fraction_static", value, most, text)
