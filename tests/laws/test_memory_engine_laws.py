"""Laws of the byte ledgers of all engines, of S-LoRA's pool, of sharded adapters and of paging."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from simlora.engines.fit import build_ledger, scenario_shortage
from simlora.engines.lorax.profile import padded_rank
from simlora.engines.slora.fragmentation import ContiguousPool, PagedPool
from simlora.engines.slora.memory import PAGES, PoolGeometry
from simlora.errors import ConfigError
from simlora.memory.ledger import EngineLedger, ledger_rows
from simlora.memory.tensors import adapter_shard_bytes, module_shard
from simlora.scenario.gpu import GPUS
from simlora.scenario.load import scenario_from_dict
from simlora.scenario.lora_modules import ALL_LINEAR, ATTENTION, EMBEDDINGS, adapter_bytes
from simlora.scenario.model import MODELS

KINDS = ("slora", "lorax", "sglang", "punica", "grouped", "sequential", "merged-swap")
DENSE = sorted(name for name, model in MODELS.items() if not model.is_moe)
MULTI_HEAD = [name for name in DENSE if MODELS[name].num_key_value_heads == MODELS[name].num_attention_heads]
ranks = st.integers(1, 256)
degrees = st.sampled_from([1, 2, 4, 8])
models = st.sampled_from(sorted(MODELS)).map(MODELS.__getitem__)


def built(kind: str, model: str, gpu: str, rank: int, engine: dict[str, Any]) -> tuple[Any, EngineLedger] | None:
    """(scenario, ledger); None where the engine refuses the scenario."""
    given_engine = {"kind": kind, "max_model_len": 2048, **engine}
    data = {"model": model, "gpu": gpu, "engine": given_engine, "adapters": {"count": 4, "ranks": rank}}
    try:
        scenario = scenario_from_dict(data)
    except ConfigError:
        return None
    ledger = build_ledger(scenario)
    assert isinstance(ledger, EngineLedger)
    return scenario, ledger


@settings(max_examples=60)
@given(st.sampled_from(KINDS), st.sampled_from(sorted(MODELS)), st.sampled_from(sorted(GPUS)), degrees, ranks)
def test_parts_add_up_and_a_shortage_is_always_named(kind: str, model: str, gpu: str, tp: int, rank: int) -> None:
    rank = 64 if kind == "punica" else rank
    made = built(kind, model, gpu, rank, {"tensor_parallel_size": tp})
    if made is None:
        return
    scenario, ledger = made
    rows = ledger_rows(ledger)
    assert sum(row.bytes for row in rows) == ledger.total_bytes
    assert all(row.bytes >= 0 for row in rows[:-1])  # the last one is what is free
    assert all(part.bytes >= 0 for part in ledger.parts) and ledger.kv_units >= 0
    assert ledger.adapter_room.bytes >= 0 and ledger.host_bytes >= 0
    problem = scenario_shortage(scenario, ledger)
    assert (problem is None) == ledger.fits
    if problem is None:
        assert rows[-1].bytes >= 0 and ledger.usable_kv_tokens >= 2048
    else:
        assert problem.key.startswith(("engine.", "adapters.")) and problem.message


@settings(max_examples=30)
@given(st.sampled_from(KINDS), st.sampled_from(DENSE), st.integers(1, 64))
def test_more_room_for_adapters_never_leaves_more_for_the_cache(kind: str, model: str, more: int) -> None:
    key = {
        "slora": "pool_size_lora",
        "lorax": "adapter_memory_fraction",
        "sglang": "max_loras_per_batch",
        "merged-swap": "max_num_batched_tokens",
    }.get(kind, "max_loras")
    scale = {"adapter_memory_fraction": 0.01, "max_num_batched_tokens": 4096}.get(key, 1)
    values: list[Any] = [more * scale, min(2 * more * scale, 0.99 if scale == 0.01 else 10**9)]
    pair = [built(kind, model, "h200-141gb", 16, {key: value}) for value in values]
    few, many = (ledger for made in pair if made for _, ledger in [made])
    assert many.available_bytes <= few.available_bytes and many.kv_units <= few.kv_units
    assert many.adapter_area_bytes >= few.adapter_area_bytes


@given(models, degrees, st.sampled_from(["row", *PAGES]), st.integers(1, 255))
def test_adapter_units_grow_with_rank_and_hold_its_bytes(model: Any, tp: int, page: str, rank: int) -> None:
    pool = PoolGeometry(model, tp, page)
    assert 0 < pool.adapter_units(rank) <= pool.adapter_units(rank + 1)
    assert pool.adapter_waste_bytes(rank) >= 0
    assert pool.adapter_bytes(rank) < pool.adapter_bytes(rank + 1) or tp > 1


@given(models, degrees, st.sampled_from(sorted(PAGES)), ranks)
def test_pages_waste_less_than_one_per_matrix(model: Any, tp: int, page: str, rank: int) -> None:
    pool = PoolGeometry(model, tp, page)
    matrices = 2 * len(ATTENTION)
    pages = pool.matrix_pages(rank)
    assert len(pages) == matrices
    held = pool.adapter_bytes(rank) // model.num_hidden_layers
    waste = sum(pages) * pool.buffer_bytes - held
    assert 0 <= waste < matrices * pool.buffer_bytes
    # an index names a page in both buffers, so an odd number of pages leaves one more empty
    assert pool.adapter_waste_bytes(rank) == model.num_hidden_layers * (waste + sum(pages) % 2 * pool.buffer_bytes)


@given(ranks, st.sampled_from(MULTI_HEAD))
def test_multi_head_rows_are_four_per_rank(rank: int, name: str) -> None:
    model = MODELS[name]
    pool = PoolGeometry(model)
    assert pool.adapter_units(rank) == 4 * rank
    assert pool.adapter_bytes(rank) == 16 * rank * model.num_hidden_layers * model.hidden_size


def replicated_bytes(model: Any, rank: int, modules: tuple[str, ...], tp: int) -> int:
    """What every GPU holds alike: A of layers split by output, B of layers split by input, embeddings."""
    total = 0
    for module in modules:
        pair = module_shard(model, module, rank, tp, partitioned=False)
        same = pair.a + pair.b if module in EMBEDDINGS else pair.b if module in ("o_proj", "down_proj") else pair.a
        total += same * pair.copies
    return total * model.dtype_bytes


def divides(model: Any, tp: int) -> bool:
    width = model.moe_intermediate_size if model.is_moe else model.intermediate_size
    return model.num_key_value_heads % tp == 0 and model.num_attention_heads % tp == 0 and width % tp == 0


@given(models, degrees, ranks, st.booleans())
def test_shards_of_an_adapter_add_up(model: Any, tp: int, rank: int, embeddings: bool) -> None:
    modules = ALL_LINEAR + (EMBEDDINGS if embeddings else ())
    whole = adapter_bytes(model, rank, modules)
    assert adapter_shard_bytes(model, rank, modules) == whole
    if not divides(model, tp):
        return
    shard = adapter_shard_bytes(model, rank, modules, tp)
    assert tp * shard == whole + (tp - 1) * replicated_bytes(model, rank, modules, tp)


@given(models, degrees, st.integers(1, 32))
def test_partitioned_shards_repeat_nothing(model: Any, tp: int, eighths: int) -> None:
    rank = 8 * eighths  # every degree here divides it
    if divides(model, tp) and model.hidden_size % tp == 0:
        shard = adapter_shard_bytes(model, rank, ALL_LINEAR, tp, partitioned=True)
        assert tp * shard == adapter_bytes(model, rank, ALL_LINEAR)


@given(ranks, degrees)
def test_padded_ranks_divide_over_the_gpus_and_never_shrink(rank: int, tp: int) -> None:
    padded = padded_rank(rank, tp)
    assert padded >= max(rank, 8 * tp if rank <= 8 * tp else 0) and padded % 8 == 0
    assert padded <= padded_rank(rank + 1, tp) and padded_rank(padded, tp) == padded


calls = st.lists(
    st.tuples(st.integers(0, 5), st.lists(st.integers(1, 60), min_size=1, max_size=4)), min_size=1, max_size=40
)


def play(pool: PagedPool | ContiguousPool, events: Any) -> dict[int, int]:
    """Allocate for a key that holds nothing, free one that does; returns bytes by key."""
    held: dict[int, int] = {}
    for key, sizes in events:
        before = pool.report()
        if key in held:
            pool.free(key)
            del held[key]
        elif pool.allocate(key, sizes):
            held[key] = sum(sizes)
        else:
            after = pool.report()
            assert after[:5] == before[:5] and after.refused == before.refused + 1
        report = pool.report()
        assert report.free_bytes + report.allocated_bytes == report.total_bytes
        assert report.held_bytes == sum(held.values()) <= report.allocated_bytes
        assert 0 <= report.largest_free_bytes <= report.free_bytes
    for key in held:
        pool.free(key)
    return held


@given(calls, st.integers(1, 40))
def test_pools_lose_nothing_and_paging_never_fragments(events: Any, page: int) -> None:
    paged, contiguous = PagedPool(200, page), ContiguousPool(200)
    play(paged, events)
    play(contiguous, events)
    assert paged.report().free_bytes == 200 // page * page and contiguous.report().largest_free_bytes == 200
    assert paged.report().external_fraction == 0


@given(calls)
def test_pages_of_one_byte_refuse_only_what_is_not_there(events: Any) -> None:
    pool = PagedPool(200, 1)
    play(pool, events)
    assert pool.report().refused_by_fragmentation == 0
