"""S-LoRA's memory: one pool of rows or pages that holds KV cache and adapters, and its byte ledger.

Source: slora/common/mem_allocator.py, slora/server/router/model_infer/infer_adapter.py (c1ddf48), sections 4 and 6 of
arXiv:2311.03285.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simlora.engines.fit import fits_with
from simlora.engines.shortages import common, largest_rank, lowered, overridden, rank_shortage
from simlora.memory.inputs import MemoryInputs, activation_part, context_part, weight_part
from simlora.memory.ledger import ADAPTERS, NO_LIMIT, AdapterNeed, AdapterRoom, EngineLedger, Part
from simlora.memory.shortage import ADAPTERS as ADAPTERS_TERM
from simlora.memory.shortage import PREFILL, Shortage
from simlora.memory.tensors import Shard, adapter_shard_bytes, module_shard
from simlora.scenario.engines.slora import SloraConfig
from simlora.scenario.lora_modules import ATTENTION
from simlora.scenario.model import ModelSpec
from simlora.scenario.root import Scenario

PAGES = {"16KiB": 16 << 10, "64KiB": 64 << 10}


@dataclass(frozen=True)
class PoolGeometry:
    """The unit of the pool: an index into a key and a value buffer in every layer.

    A row holds one token's keys and values. A page holds `page` bytes in each buffer: several tokens, or part of one
    adapter matrix. Adapters cover the query, key, value and output projection only, whatever else they hold.
    """

    model: ModelSpec
    tensor_parallel_size: int = 1
    page: str = "row"

    @property
    def row_bytes(self) -> int:
        """Keys (or values) of one token in one layer, on one GPU."""
        heads = max(-(-self.model.num_key_value_heads // self.tensor_parallel_size), 1)
        return heads * self.model.head_dim * self.model.dtype_bytes

    @property
    def buffer_bytes(self) -> int:
        """One unit in one buffer of one layer."""
        return PAGES.get(self.page, self.row_bytes)

    @property
    def unit_bytes(self) -> int:
        """One unit: both buffers, all layers, one GPU."""
        return self.stage_unit_bytes(self.model.num_hidden_layers)

    @property
    def unit_tokens(self) -> int:
        """Tokens in a unit. 0: a token's keys are larger than a page."""
        return self.buffer_bytes // self.row_bytes

    def stage_unit_bytes(self, layers: int) -> int:
        """One unit in that many layers."""
        return 2 * layers * self.buffer_bytes

    @property
    def token_waste_bytes(self) -> int:
        """Internal fragmentation of a full page of tokens: what its buffers hold beyond them. 0 for rows."""
        return self.unit_bytes * (self.buffer_bytes - self.unit_tokens * self.row_bytes) // self.buffer_bytes

    def kv_units(self, tokens: int) -> int:
        """Units that hold the keys and values of that many tokens of one request."""
        return -(-tokens // self.unit_tokens)

    def adapter_units(self, rank: int) -> int:
        """Units of one adapter.

        Rows: 4 * rank for multi-head attention, where A and B of a projection are rank rows of the key and of the value
        buffer. With grouped queries the matrices and the rows differ in width, which the published code cannot store;
        the bytes decide then: those of one layer over those of a row, rounded up. Pages: every matrix begins a page.
        """
        if self.page == "row":
            return -(-sum(self._matrices(rank)) // (2 * self.row_bytes))
        return -(-sum(self.matrix_pages(rank)) // 2)

    def matrix_pages(self, rank: int) -> tuple[int, ...]:
        """Pages of the A and B matrices of one layer, in one buffer each."""
        return tuple(-(-size // self.buffer_bytes) for size in self._matrices(rank))

    def adapter_bytes(self, rank: int) -> int:
        """What the matrices of one adapter hold, on one GPU."""
        return adapter_shard_bytes(self.model, rank, ATTENTION, self.tensor_parallel_size, partitioned=True)

    def adapter_waste_bytes(self, rank: int) -> int:
        """Internal fragmentation: what the units of one adapter hold beyond its matrices."""
        return self.adapter_units(rank) * self.unit_bytes - self.adapter_bytes(rank)

    def _matrices(self, rank: int) -> list[int]:
        """Bytes of each matrix of one layer. Every worker holds 1 / tensor_parallel_size (section 6 of the paper)."""
        degree, width = self.tensor_parallel_size, self.model.dtype_bytes
        pairs = [module_shard(self.model, module, rank, degree, partitioned=True) for module in ATTENTION]
        return [elements * width for pair in pairs for elements in (pair.a, pair.b)]


def pool_geometry(scenario: Scenario) -> PoolGeometry:
    """The pool of a scenario with engine kind slora."""
    engine = scenario.engine
    assert isinstance(engine, SloraConfig)
    return PoolGeometry(scenario.model_spec, engine.tensor_parallel_size, engine.page)


def slora_ledger(inputs: MemoryInputs) -> EngineLedger:
    """The GPU of the pipeline stage with the fewest units."""
    pool = PoolGeometry(inputs.model, inputs.tp, inputs.engine.page)
    stages = inputs.shards(pool.unit_tokens, inputs.largest_rank)
    return min((_stage(inputs, pool, shard) for shard in stages), key=lambda ledger: ledger.kv_units)


def _stage(inputs: MemoryInputs, pool: PoolGeometry, shard: Shard) -> EngineLedger:
    engine, rank, unit_bytes = inputs.engine, inputs.largest_rank, pool.stage_unit_bytes(shard.layers)
    own_units = pool.kv_units(engine.pool_size_lora)
    parts = (
        weight_part(shard),
        Part("adapter rows", ADAPTERS, own_units * unit_bytes, _adapter_note(inputs, pool, own_units)),
        activation_part(shard, inputs.gpu),
        context_part(shard),
    )
    budget = int(inputs.total_bytes * engine.gpu_memory_utilization)
    left = budget - sum(part.bytes for part in parts)
    asked = engine.max_total_token_num
    units = max(left, 0) // unit_bytes if asked is None else asked // pool.unit_tokens
    need = None
    if rank:
        limit = max(units - 1, 0) if engine.unified_memory else own_units
        need = AdapterNeed(pool.adapter_units(rank), limit, _unit_name(pool))
    return EngineLedger(
        kind="slora",
        model=inputs.model,
        gpu=inputs.gpu,
        total_bytes=inputs.total_bytes,
        budget_bytes=budget,
        parts=parts,
        kv_unit_bytes=unit_bytes,
        kv_unit_tokens=pool.unit_tokens,
        kv_units=units,
        kv_label="unified pool" if engine.unified_memory else "KV cache",
        unit_name=_unit_name(pool),
        adapter_room=AdapterRoom(NO_LIMIT, own_units, engine.unified_memory, own_units * unit_bytes),
        adapter_need=need,
        adapter_modules=ATTENTION,
        needed_kv_tokens=engine.max_model_len,
        host_bytes=inputs.host_bytes(ATTENTION, 1),
    )


def _unit_name(pool: PoolGeometry) -> str:
    return "rows" if pool.page == "row" else f"{pool.page} pages"


def _adapter_note(inputs: MemoryInputs, pool: PoolGeometry, own_units: int) -> str:
    rank = inputs.largest_rank
    if not rank:
        return "no adapters"
    place = "in the pool" if inputs.engine.unified_memory else f"{own_units} {_unit_name(pool)}"
    size = f"one of rank {rank} takes {pool.adapter_units(rank)} {_unit_name(pool)} (q, k, v and o only)"
    waste = pool.adapter_waste_bytes(rank) / (pool.adapter_units(rank) * pool.unit_bytes)
    return f"{place}; {size}" + (f", {waste:.0%} of them empty" if waste >= 0.005 else "")


def slora_shortages(scenario: Scenario, ledger: EngineLedger) -> Iterator[Shortage | None]:
    """See EngineSpec.shortages."""
    engine = scenario.engine
    assert isinstance(engine, SloraConfig)
    yield overridden(scenario, ledger, "max_total_token_num")
    yield _more_rows(scenario, engine, ledger)
    yield rank_shortage(scenario, ledger)
    yield lowered(scenario, ledger, ADAPTERS_TERM, "pool_size_lora")
    yield lowered(scenario, ledger, PREFILL, "batch_max_tokens")
    yield from common(scenario, ledger, one_gpu=engine.artifact)


def _more_rows(scenario: Scenario, engine: SloraConfig, ledger: EngineLedger) -> Shortage | None:
    """Rows for adapters alone that hold the largest one."""
    need, key = ledger.adapter_need, "engine.pool_size_lora"
    if need is None or ledger.adapters_fit or engine.unified_memory:
        return None
    rows = need.needed * ledger.kv_unit_tokens
    if not fits_with(scenario, {key: rows}):
        return None
    text = (
        f"adapter memory binds: an adapter of rank {largest_rank(scenario)} takes {need.needed} {need.unit}, and with "
        f"unified_memory: false adapters get {need.limit}; smallest pool_size_lora that holds it: {rows}"
    )
    return Shortage(ADAPTERS_TERM, key, engine.pool_size_lora, rows, text)
