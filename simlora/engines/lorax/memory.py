"""LoRAX's memory: a share of the GPU kept for adapters, reserved blocks for the rest.

Source: server/lorax_server/models/flash_causal_lm.py (warmup), adapters/lora.py, router/src/queue.rs (a7394ba).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from simlora.engines.fit import fits_with
from simlora.engines.lorax.profile import GRAPH_BATCHES, GRAPH_RANKS, padded_rank
from simlora.engines.shortages import common, kv_state, largest_rank, lowered, overridden, rank_shortage
from simlora.memory.inputs import MemoryInputs, activation_part, context_part, graph_part, weight_part
from simlora.memory.ledger import ADAPTERS, SLACK, AdapterNeed, AdapterRoom, EngineLedger, Part
from simlora.memory.shortage import ADAPTERS as ADAPTERS_TERM
from simlora.memory.shortage import PREFILL, Shortage, gb, largest_that
from simlora.memory.tensors import Shard, adapter_shard_bytes
from simlora.scenario.engines.lorax import LoraxConfig
from simlora.scenario.lora_modules import adapter_bytes
from simlora.scenario.root import Scenario

_FRACTION = "engine.adapter_memory_fraction"
WIGGLE_ROOM = 0.9
"""memory_wiggle_room: share of the free memory that becomes KV blocks."""


def adapter_gpu_bytes(inputs: MemoryInputs, rank: int) -> int:
    """One loaded adapter on one GPU: padded, and both matrices split over the GPUs."""
    padded = padded_rank(rank, inputs.tp)
    return adapter_shard_bytes(inputs.model, padded, inputs.modules, inputs.tp, partitioned=True)


def adapter_cost_fraction(scenario: Scenario, rank: int, adapter: int | None = None) -> float:
    """Share of the budget of active adapters (1.0) that one adapter takes; above 1 its requests fail.

    The router counts file bytes against the memory kept for adapters on one GPU: neither padding nor the number of GPUs
    enters. With preloaded adapters the budget is 0: those cost nothing, any other (or adapter None) infinitely much.
    """
    engine = scenario.engine
    assert isinstance(engine, LoraxConfig)
    preloaded = engine.preloaded_adapter_ids
    if rank == 0 or adapter in preloaded:
        return 0.0
    inputs = MemoryInputs.of(scenario)
    budget = _kept_bytes(inputs)
    return math.inf if preloaded or not budget else adapter_bytes(inputs.model, rank, inputs.modules) / budget


def lorax_ledger(inputs: MemoryInputs) -> EngineLedger:
    """The GPU of the pipeline stage with the fewest blocks."""
    stages = inputs.shards(
        inputs.engine.block_size, padded_rank(inputs.largest_rank, inputs.tp) if _lora(inputs) else 0
    )
    return min((_stage(inputs, shard) for shard in stages), key=lambda ledger: ledger.kv_units)


def _stage(inputs: MemoryInputs, shard: Shard) -> EngineLedger:
    engine, total = inputs.engine, inputs.total_bytes
    kept = _kept_bytes(inputs)
    graphs = 0 if engine.enforce_eager else len(GRAPH_BATCHES)
    parts = [
        weight_part(shard),
        _adapter_part(inputs, kept),
        activation_part(shard, inputs.gpu),
        graph_part(shard, graphs, graphs * (len(GRAPH_RANKS) - 1) if _lora(inputs) else 0),
        context_part(shard),
    ]
    left = total - sum(part.bytes for part in parts)
    blocks = _blocks(left, shard.kv_block_bytes, -(-engine.max_batch_prefill_tokens // engine.block_size))
    slack = max(left - blocks * shard.kv_block_bytes, 0)
    parts.append(Part("wiggle room", SLACK, slack, f"memory_wiggle_room {WIGGLE_ROOM:g}", in_budget=False))
    largest = inputs.largest_rank
    dynamic = largest and not engine.preloaded_adapter_ids
    file_bytes = adapter_bytes(inputs.model, largest, inputs.modules) if largest else 0
    return EngineLedger(
        kind="lorax",
        model=inputs.model,
        gpu=inputs.gpu,
        total_bytes=total,
        budget_bytes=total,
        parts=tuple(parts),
        kv_unit_bytes=shard.kv_block_bytes,
        kv_unit_tokens=engine.block_size,
        kv_units=blocks,
        kv_label="KV cache",
        unit_name="blocks",
        adapter_room=AdapterRoom(engine.max_active_adapters, 0, False, parts[1].bytes),
        adapter_need=AdapterNeed(file_bytes, kept, "bytes") if dynamic else None,
        adapter_modules=inputs.modules,
        needed_kv_tokens=max(engine.max_model_len, engine.max_batch_total_tokens or 0),
        host_bytes=inputs.host_bytes(inputs.modules, 1) if engine.host_cache else 0,
    )


def _blocks(left: int, block_bytes: int, warm_blocks: int) -> int:
    """KV blocks. The warm-up's prompts must fit; their blocks, part of its peak, come on top of the share."""
    free = left - warm_blocks * block_bytes
    return 0 if free < 0 else int(free * WIGGLE_ROOM // block_bytes) + warm_blocks


def _adapter_part(inputs: MemoryInputs, kept: int) -> Part:
    preloaded = inputs.engine.preloaded_adapter_ids
    if preloaded:
        size = len(preloaded) * adapter_gpu_bytes(inputs, inputs.largest_rank)
        return Part("preloaded adapters", ADAPTERS, size, f"{len(preloaded)}, each counted at the largest rank")
    share = inputs.engine.adapter_memory_fraction
    return Part("adapter memory", ADAPTERS, kept, f"adapter_memory_fraction {share:g} of the GPU, used or not")


def _kept_bytes(inputs: MemoryInputs) -> int:
    """The GPU memory that adapters loaded on demand share."""
    engine = inputs.engine
    return 0 if engine.preloaded_adapter_ids else int(inputs.total_bytes * engine.adapter_memory_fraction)


def _lora(inputs: MemoryInputs) -> bool:
    return bool(inputs.rank_counts)


def lorax_shortages(scenario: Scenario, ledger: EngineLedger) -> Iterator[Shortage | None]:
    """See EngineSpec.shortages."""
    engine = scenario.engine
    assert isinstance(engine, LoraxConfig)
    yield overridden(scenario, ledger, "max_batch_total_tokens")
    yield _larger_share(scenario, engine, ledger)
    yield rank_shortage(scenario, ledger)
    yield lowered(scenario, ledger, PREFILL, "max_batch_prefill_tokens")
    yield _smaller_share(scenario, engine, ledger)
    yield from common(scenario, ledger)


def _larger_share(scenario: Scenario, engine: LoraxConfig, ledger: EngineLedger) -> Shortage | None:
    """The smallest share for adapters that holds the largest file."""
    need = ledger.adapter_need
    if need is None or ledger.adapters_fit:
        return None
    least = _least_thousandths(ledger) / 1000
    if least >= 1 or not fits_with(scenario, {_FRACTION: least}):
        return None
    text = (
        f"adapter memory binds: a file of rank {largest_rank(scenario)} has {gb(need.needed)}, and {gb(need.limit)} "
        f"are kept for adapters; smallest adapter_memory_fraction that holds it: {least:g}"
    )
    return Shortage(ADAPTERS_TERM, _FRACTION, engine.adapter_memory_fraction, least, text)


def _smaller_share(scenario: Scenario, engine: LoraxConfig, ledger: EngineLedger) -> Shortage | None:
    """A smaller share for adapters leaves more to the KV cache."""
    if engine.preloaded_adapter_ids:
        return None
    value = engine.adapter_memory_fraction
    high = int(value * 1000 - 1e-9)
    best = largest_that(_least_thousandths(ledger), high, lambda part: fits_with(scenario, {_FRACTION: part / 1000}))
    if best is None:
        return None
    text = (
        f"adapter memory binds: {gb(ledger.adapter_area_bytes)} are kept for adapters on each GPU; "
        f"{kv_state(ledger)}; largest adapter_memory_fraction that fits: {best / 1000:g}"
    )
    return Shortage(ADAPTERS_TERM, _FRACTION, value, best / 1000, text)


def _least_thousandths(ledger: EngineLedger) -> int:
    """Share of the GPU that holds the largest file, in thousandths, rounded up."""
    return 0 if ledger.adapter_need is None else -(-1000 * ledger.adapter_need.needed // ledger.total_bytes)
