"""Byte ledgers of the engines other than vLLM: their own formulas, and what is refused with which largest value."""

from __future__ import annotations

import math
from typing import Any

import pytest
from typer.testing import CliRunner

from simlora.cli import app
from simlora.engines.fit import build_ledger, require_fit
from simlora.engines.lorax.memory import adapter_cost_fraction
from simlora.engines.lorax.profile import padded_rank
from simlora.engines.sglang.profile import capture_batches
from simlora.engines.slora.memory import PoolGeometry, pool_geometry
from simlora.memory.ledger import EngineLedger, binding, ledger_rows
from simlora.scenario.load import changed, scenario_from_dict
from simlora.scenario.model import MODELS
from simlora.scenario.root import Scenario

KINDS = ("slora", "lorax", "sglang", "punica", "grouped", "sequential", "merged-swap")
LLAMA_2 = MODELS["llama-2-7b"]
LLAMA_3 = MODELS["llama-3.1-8b"]


def scenario(kind: str, model: str = "llama-2-7b", gpu: str = "a10g", **changes: Any) -> Scenario:
    adapters = {"count": 10, "ranks": 16, **changes.pop("adapters", {})}
    return scenario_from_dict({"model": model, "gpu": gpu, "engine": {"kind": kind, **changes}, "adapters": adapters})


def ledger(kind: str, *args: str, **changes: Any) -> EngineLedger:
    built = build_ledger(scenario(kind, *args, **changes))
    assert isinstance(built, EngineLedger)
    return built


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_fits_and_its_rows_add_up(kind: str) -> None:
    fitting = require_fit(scenario(kind))
    rows = ledger_rows(fitting)
    assert sum(row.bytes for row in rows) == fitting.total_bytes
    assert sum(row.share for row in rows) == pytest.approx(1)
    assert all(row.bytes >= 0 for row in rows)
    assert fitting.usable_kv_tokens == fitting.kv_units * fitting.kv_unit_tokens >= 4096
    assert fitting.kv_units * fitting.kv_unit_bytes == fitting.kv_bytes
    assert binding(fitting).startswith("weights take ")


def test_the_vllm_ledger_speaks_the_same_words() -> None:
    given = scenario_from_dict({"model": "llama-2-7b", "gpu": "a10g", "engine": {"max_loras": 4}})
    built: Any = require_fit(given)
    assert built.kv_units == built.kv_blocks - 1
    assert built.kv_units * built.kv_unit_tokens == built.usable_kv_tokens
    assert built.adapter_room.slots == 4
    assert built.adapter_room.bytes == built.adapter_area_bytes == built.slots_bytes


# S-LoRA


@pytest.mark.parametrize(("rank", "rows", "mib"), [(8, 32, 16), (16, 64, 32), (64, 256, 128), (3, 12, 6)])
def test_an_adapter_of_a_multi_head_model_takes_4_rows_per_rank(rank: int, rows: int, mib: int) -> None:
    pool = PoolGeometry(LLAMA_2)
    assert pool.unit_bytes == 2 * 32 * 4096 * 2 == 512 << 10
    assert pool.adapter_units(rank) == rows
    assert pool.adapter_bytes(rank) == 16 * rank * 32 * 4096 == mib << 20
    assert pool.adapter_waste_bytes(rank) == 0


def test_grouped_queries_are_counted_by_bytes() -> None:
    pool = PoolGeometry(LLAMA_3)
    elements = 16 * (4096 * 2 + (4096 + 1024) * 2 + 4096 * 2)  # q, k and v, o
    assert pool.adapter_bytes(16) == 32 * elements * 2
    assert pool.adapter_units(16) == math.ceil(elements / (2 * 1024)) == 208


def test_every_worker_holds_its_share_of_rows_and_matrices() -> None:
    whole, half = PoolGeometry(LLAMA_2), PoolGeometry(LLAMA_2, tensor_parallel_size=2)
    assert 2 * half.unit_bytes == whole.unit_bytes
    assert 2 * half.adapter_bytes(16) == whole.adapter_bytes(16)
    assert half.adapter_units(16) == whole.adapter_units(16) == 64


@pytest.mark.parametrize(("page", "tokens", "units", "waste"), [("16KiB", 2, 32, 0.0), ("64KiB", 8, 8, 0.0)])
def test_pages_hold_several_tokens(page: str, tokens: int, units: int, waste: float) -> None:
    pool = PoolGeometry(LLAMA_2, page=page)
    assert (pool.unit_tokens, pool.adapter_units(16), pool.adapter_waste_bytes(16)) == (tokens, units, waste)
    assert pool.kv_units(1) == 1 and pool.kv_units(tokens + 1) == 2


def test_small_ranks_waste_the_rest_of_a_large_page() -> None:
    pool = PoolGeometry(LLAMA_2, page="64KiB")
    assert pool.matrix_pages(2) == (1,) * 8
    assert pool.adapter_waste_bytes(2) == 3 * pool.adapter_bytes(2)  # 16 of 64 KiB are used
    assert PoolGeometry(LLAMA_2).token_waste_bytes == 0
    assert PoolGeometry(MODELS["llama-2-13b"], page="16KiB").token_waste_bytes == 2 * 40 * 6 * 1024


def test_the_pool_of_an_a10g_is_about_what_the_paper_gives_it() -> None:
    """The published experiments start Llama-7B on an A10G with 14,000 rows."""
    assert ledger("slora").kv_units == pytest.approx(14_000, rel=0.1)
    given = ledger("slora", max_total_token_num=14_000)
    assert given.fits and given.kv_units == 14_000


def test_rows_for_adapters_alone_come_out_of_the_shared_ones() -> None:
    plain, own = ledger("slora"), ledger("slora", pool_size_lora=1000)
    assert own.adapter_room == (1 << 20, 1000, True, 1000 * own.kv_unit_bytes)
    assert plain.kv_units - own.kv_units == 1000
    assert not ledger("slora", pool_size_lora=1000, unified_memory=False).adapter_room.shared


def test_pool_geometry_of_a_scenario() -> None:
    given = scenario("slora", page="16KiB")
    assert pool_geometry(given) == PoolGeometry(LLAMA_2, 1, "16KiB")
    assert build_ledger(given).kv_unit_bytes == pool_geometry(given).unit_bytes


# LoRAX


@pytest.mark.parametrize(
    ("rank", "tp", "padded"), [(1, 1, 8), (8, 1, 8), (9, 1, 16), (24, 1, 32), (8, 4, 32), (40, 4, 48)]
)
def test_lorax_pads_ranks(rank: int, tp: int, padded: int) -> None:
    assert padded_rank(rank, tp) == padded


def test_lorax_keeps_a_tenth_of_the_gpu_and_leaves_a_tenth_of_the_rest() -> None:
    built = ledger("lorax")
    parts = {part.label: part for part in built.parts}
    area, slack = parts["adapter memory"], parts["wiggle room"]
    assert area.bytes == int(built.total_bytes * 0.1)
    warm = -(-(4096 + 49) // 16) * built.kv_unit_bytes
    assert slack.bytes == pytest.approx(0.1 * (built.available_bytes - warm), abs=built.kv_unit_bytes)
    assert built.kv_bytes + slack.bytes == built.available_bytes


def test_lorax_charges_file_bytes_whatever_the_number_of_gpus() -> None:
    """80 GB keep 8 GB, about 95 adapters of rank 16 of an 8B model."""
    given = scenario("lorax", "llama-3.1-8b", "h100-80gb", max_model_len=8192)
    cost = adapter_cost_fraction(given, 16)
    assert 1 / cost == pytest.approx(100, rel=0.05)
    assert adapter_cost_fraction(changed(given, {"engine.tensor_parallel_size": 2}), 16) == cost
    assert adapter_cost_fraction(given, 0) == 0


def test_lorax_with_preloaded_adapters_has_no_room_for_others() -> None:
    given = scenario("lorax", preloaded_adapter_ids=[1, 2])
    assert given.engine.adapter_memory_fraction == 0  # type: ignore[union-attr]
    assert adapter_cost_fraction(given, 16, adapter=2) == 0
    assert adapter_cost_fraction(given, 16, adapter=3) == adapter_cost_fraction(given, 16) == math.inf
    assert build_ledger(given).adapter_area_bytes == 2 * 16 * 32 * (11 * 4096 + 3 * 11008) * 2


# SGLang


def test_sglang_takes_slots_before_it_sizes_the_cache() -> None:
    few, many = ledger("sglang", max_loras_per_batch=2), ledger("sglang", max_loras_per_batch=8)
    slot = 16 * 32 * (11 * 4096 + 3 * 11008) * 2  # Llama-2: q, k, v, o, gate, up, down
    assert (few.adapter_area_bytes, many.adapter_area_bytes) == (2 * slot, 8 * slot)
    assert few.available_bytes - many.available_bytes == 6 * slot
    assert many.adapter_room.slots == 8


def test_sglang_graphs_and_activations_are_outside_its_share() -> None:
    built = ledger("sglang")
    outside = [part.label for part in built.parts if not part.in_budget]
    assert outside == ["activations", "CUDA graphs", "CUDA, NCCL"]
    assert capture_batches(24) == (1, 2, 4, 8, 12, 16, 24)
    assert len(capture_batches(512)) == 5 + 31 + 15 + 1
    eager = ledger("sglang", disable_cuda_graph=True)
    assert eager.kv_units == built.kv_units and eager.headroom_bytes > built.headroom_bytes


# Punica and the baselines


def test_punica_holds_all_seven_projections_of_one_rank() -> None:
    built = ledger("punica", max_loras=5, adapters={"target_modules": "attention"})
    assert built.adapter_area_bytes == 5 * 32 * 16 * (11 * 4096 + 3 * 11008) * 2
    assert built.unit_name == "pages" and built.kv_unit_bytes == 32 * 2 * 32 * 16 * 128 * 2


@pytest.mark.parametrize("kind", ["grouped", "sequential"])
def test_baselines_hold_adapters_at_the_largest_rank(kind: str) -> None:
    built = ledger(kind, max_loras=3, adapters={"ranks": {8: 0.5, 32: 0.5}})
    assert built.adapter_area_bytes == 3 * build_ledger(scenario(kind)).adapter_bytes(32)
    assert built.adapter_room.slots == 3


def test_one_adapter_is_merged_at_a_time() -> None:
    built = ledger("merged-swap")
    assert built.adapter_room.slots == 1 and built.adapter_area_bytes == built.adapter_bytes(16)


@pytest.mark.parametrize("kind", KINDS)
def test_without_lora_no_memory_is_kept_for_adapters(kind: str) -> None:
    built = ledger(kind, enable_lora=False, adapters={"count": 0})
    kept = built.adapter_area_bytes if kind != "lorax" else 0  # LoRAX keeps its share in any case
    assert (kept, built.host_bytes) == (0, 0) and built.fits


@pytest.mark.parametrize("kind", ["slora", "lorax"])
def test_the_memory_command_shows_the_parts_of_the_engine(kind: str, tmp_path: Any) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(f"model: llama-2-7b\ngpu: a10g\nengine: {{kind: {kind}}}\n")
    shown = CliRunner().invoke(app, ["memory", str(path)])
    assert shown.exit_code == 0, shown.output
    own = {"slora": "unified pool", "lorax": "wiggle room"}[kind]
    assert own in shown.output and "binds: weights take" in shown.output
