"""Slot, weight and KV bytes under tensor and pipeline parallelism."""

from __future__ import annotations

from typing import Any

import pytest

from simlora.engines.vllm.ledger import VllmLedger, compute_ledger
from simlora.errors import ConfigError
from simlora.memory.tensors import MemorySettings, weight_tensors
from simlora.scenario.gpu import GPUS
from simlora.scenario.model import MODELS, stage_layers


def ledger(model: str, **changes: Any) -> VllmLedger:
    given = {
        "version": "0.20",
        "max_num_seqs": 256,
        "max_num_batched_tokens": 2048,
        "max_model_len": 4096,
        "gpu_memory_utilization": 0.9,
    }
    return compute_ledger(MODELS[model], GPUS["h200-141gb"], MemorySettings(**{**given, **changes}))


@pytest.mark.parametrize(
    ("model", "rank", "megabytes"),
    [
        ("llama-2-7b", 16, (82, 44, 22)),
        ("llama-2-7b", 64, (329, 177, 89)),
        ("llama-3.1-8b", 16, (92, 51.5, 29)),
        ("llama-3.1-8b", 64, (369, 206, 118)),
        ("llama-3.1-8b", 128, (739, 412, 236)),
        ("llama-3.1-70b", 16, (423, 222, 112)),
        ("llama-3.1-70b", 64, (1692, 890, 449)),
    ],
)
def test_slot_bytes(model: str, rank: int, megabytes: tuple[float, float, float]) -> None:
    """One GPU; four GPUs; four GPUs with fully sharded slots."""
    settings: tuple[dict[str, Any], ...] = (
        {},
        {"tensor_parallel_size": 4},
        {"tensor_parallel_size": 4, "fully_sharded_loras": True},
    )
    for changes, expected in zip(settings, megabytes, strict=True):
        assert ledger(model, max_lora_rank=rank, **changes).slot_bytes / 1e6 == pytest.approx(expected, abs=0.55)


def test_embedding_slots_are_not_sharded() -> None:
    """t GPUs hold the linear layers once and the embeddings t times, with fully sharded slots."""
    whole = ledger("llama-3.1-70b", max_lora_rank=64)
    quarter = ledger("llama-3.1-70b", max_lora_rank=64, tensor_parallel_size=4, fully_sharded_loras=True)
    embeddings = 2 * 2 * (128256 + 8192) * 64
    assert 4 * quarter.slot_bytes == whole.slot_bytes + 3 * embeddings


def test_default_sharding_keeps_a_of_column_layers_and_b_of_row_layers_whole() -> None:
    whole = ledger("llama-3.1-8b", max_lora_rank=16)
    half = ledger("llama-3.1-8b", max_lora_rank=16, tensor_parallel_size=2)
    embeddings = 2 * 2 * (128256 + 4096) * 16
    replicated = 32 * (5 + 2) * 4096 * 16 * 2
    assert 2 * half.slot_bytes == whole.slot_bytes + embeddings + replicated


def test_slots_scale_with_rank_and_count_whatever_the_adapters_are() -> None:
    one = ledger("qwen2.5-7b", max_loras=1, max_lora_rank=8)
    assert one.slot_bytes == 5_046_272 * 8  # 28 layers of 90,112 elements per rank, two bytes each
    assert ledger("qwen2.5-7b", max_loras=12, max_lora_rank=32).slots_bytes == 48 * one.slots_bytes
    assert ledger("qwen2.5-7b", max_loras=12, max_lora_rank=32).slots_bytes == 12 * 4 * one.slot_bytes


def test_0_8_5_slots_of_a_class_with_embeddings_hold_three_tables_of_extra_tokens() -> None:
    old = ledger("llama-3.1-8b", version="0.8.5", max_lora_rank=16)
    new = ledger("llama-3.1-8b", version="0.20", max_lora_rank=16)
    assert old.slot_bytes - new.slot_bytes == 3 * 256 * 4096 * 2 + 2 * 256 * 16 * 2
    same = [ledger("qwen2.5-7b", version=version, max_lora_rank=16).slot_bytes for version in ("0.8.5", "0.20")]
    assert same[0] == same[1]


def test_only_the_target_modules_get_slots() -> None:
    attention = ledger("llama-3.1-8b", slot_modules=("q_proj", "k_proj", "v_proj", "o_proj"), router_slots=False)
    assert attention.slot_bytes == 32 * 16 * 2 * (3 * 4096 + 4096 + 2 * 1024 + 2 * 4096)


def test_experts_get_slots_since_0_20_and_the_router_always() -> None:
    moe, old = ledger("qwen3-30b-a3b"), ledger("qwen3-30b-a3b", version="0.8.5")
    experts = 48 * 128 * 16 * 2 * 3 * (2048 + 768)
    router = 48 * 16 * 2 * (2048 + 128)
    attention = 48 * 16 * 2 * (3 * 2048 + 4096 + 2 * 512 + 4096 + 2048)
    embeddings = 2 * 2 * 16 * (151936 + 2048)
    assert moe.slot_bytes == experts + router + attention + embeddings
    assert old.slot_bytes < moe.slot_bytes / 10


def test_gpt_oss_keeps_gate_and_up_of_an_expert_in_one_slot_tensor() -> None:
    spec = MODELS["gpt-oss-20b"]
    per_expert = spec.hidden_size + 2 * spec.moe_intermediate_size + spec.moe_intermediate_size + spec.hidden_size
    attention = 3 * spec.hidden_size + 2 * spec.q_size + 2 * spec.kv_size + spec.hidden_size
    router = spec.hidden_size + spec.num_experts
    elements = spec.num_hidden_layers * (spec.num_experts * per_expert + attention + router)
    assert ledger("gpt-oss-20b", max_lora_rank=8).slot_bytes == elements * 8 * 2


def test_no_lora_no_slots() -> None:
    off = ledger("llama-3.1-8b", enable_lora=False)
    assert off.slots_bytes == off.slot_bytes == off.host_bytes == 0
    assert off.kv_blocks > ledger("llama-3.1-8b").kv_blocks


def test_a_quantized_checkpoint_keeps_its_size() -> None:
    spec = MODELS["gpt-oss-20b"]
    assert ledger("gpt-oss-20b", enable_lora=False).weight_bytes == pytest.approx(spec.weight_bytes, rel=0.002)


@pytest.mark.parametrize("model", sorted(name for name, spec in MODELS.items() if spec.quantized_weight_bytes is None))
def test_weights_of_one_gpu_are_the_checkpoint(model: str) -> None:
    """Beside the parameters there is the rotary table, and the vocabulary is padded to 64 rows."""
    spec = MODELS[model]
    bytes_held = ledger(model, enable_lora=False).weight_bytes
    rotary = spec.max_position_embeddings * spec.head_dim * spec.dtype_bytes
    padding = 2 * (-spec.vocab_size % 64) * spec.hidden_size * spec.dtype_bytes
    assert bytes_held - spec.weight_bytes == pytest.approx(rotary + padding, rel=0.02, abs=4096)


@pytest.mark.parametrize("model", ["llama-3.1-70b", "qwen2.5-72b", "mixtral-8x7b"])
@pytest.mark.parametrize("tp", [2, 4, 8])
def test_tensor_parallel_weights_add_up(model: str, tp: int) -> None:
    """Only norms, the rotary table and the router are held by every GPU."""
    spec = MODELS[model]
    whole, part = ledger(model, enable_lora=False), ledger(model, enable_lora=False, tensor_parallel_size=tp)
    replicated = tp * part.weight_bytes - whole.weight_bytes
    rotary = spec.max_position_embeddings * spec.head_dim * 2
    norms = (2 * spec.num_hidden_layers + 1) * spec.hidden_size * 2
    router = spec.num_hidden_layers * spec.num_experts * spec.hidden_size * 2
    assert replicated == (tp - 1) * (rotary + norms + router)


def test_kv_blocks_are_shared_by_heads_and_replicated_beyond_them() -> None:
    whole = ledger("llama-3.1-8b").kv_block_bytes
    assert whole == 2 * 16 * 8 * 128 * 2 * 32
    for tp, parts in ((2, 2), (8, 8), (16, 8)):
        assert ledger("llama-3.1-8b", tensor_parallel_size=tp).kv_block_bytes == whole // parts
    assert ledger("llama-3.1-8b", block_size=32).kv_block_bytes == 2 * whole


def test_blocks_are_what_fits_and_the_override_wins() -> None:
    free = ledger("llama-3.1-8b")
    assert free.kv_blocks == free.available_bytes // free.kv_block_bytes
    assert free.usable_kv_tokens == free.kv_tokens - 16
    fixed = ledger("llama-3.1-8b", num_gpu_blocks_override=1600)
    assert fixed.kv_blocks == 1600 and fixed.kv_tokens == 25_600
    assert fixed.fitting_kv_blocks == free.kv_blocks


def test_pipeline_stages_split_layers_as_vllm_does() -> None:
    assert stage_layers(32, 4) == (8, 8, 8, 8)
    assert stage_layers(30, 4) == (7, 8, 8, 7)
    assert stage_layers(7, 2) == (4, 3)


def test_a_pipeline_has_the_blocks_of_its_fullest_stage() -> None:
    """The last stage holds lm_head and runs the sampler."""
    two = ledger("llama-3.1-8b", enable_lora=False, pipeline_parallel_size=2)
    one = ledger("llama-3.1-8b", enable_lora=False)
    assert two.kv_block_bytes * 2 == one.kv_block_bytes
    assert 0.45 < two.weight_bytes / one.weight_bytes < 0.55
    assert two.kv_blocks > 2 * one.kv_blocks


def test_activations_grow_with_tokens_sequences_and_rank() -> None:
    small = ledger("llama-3.1-70b", tensor_parallel_size=4, max_num_seqs=64)
    tokens = ledger("llama-3.1-70b", tensor_parallel_size=4, max_num_seqs=64, max_num_batched_tokens=16384)
    sequences = ledger("llama-3.1-70b", tensor_parallel_size=4, max_num_seqs=1024)
    ranks = ledger(
        "llama-3.1-70b", tensor_parallel_size=4, max_num_seqs=64, max_num_batched_tokens=16384, max_lora_rank=256
    )
    assert tokens.activation_bytes > 5 * small.activation_bytes
    assert sequences.activation_bytes > 3 * small.activation_bytes
    assert ranks.activation_bytes - tokens.activation_bytes == 16384 * 3 * 240 * 4


def test_graphs_double_with_lora_and_vanish_in_eager_mode() -> None:
    base = ledger("llama-3.1-8b", enable_lora=False)
    lora = ledger("llama-3.1-8b")
    eager = ledger("llama-3.1-8b", enforce_eager=True)
    several = ledger("llama-3.1-8b", max_loras=8, specialize_active_lora=True)
    assert 0.6e9 < base.graph_bytes < 0.7e9
    assert 1.9 < lora.graph_bytes / base.graph_bytes < 2.6
    assert eager.graph_bytes == 0 and eager.kv_blocks > lora.kv_blocks
    assert several.graph_bytes > 2 * lora.graph_bytes


def test_host_cache_is_counted_once_per_worker_at_the_largest_ranks() -> None:
    settings = MemorySettings(
        version="0.20",
        max_num_seqs=256,
        max_num_batched_tokens=8192,
        max_model_len=8192,
        gpu_memory_utilization=0.9,
        tensor_parallel_size=4,
        max_lora_rank=64,
        max_cpu_loras=30,
    )
    full = compute_ledger(MODELS["llama-3.1-70b"], GPUS["h200-141gb"], settings, {8: 100, 64: 20})
    assert full.adapter_bytes(64) == 8 * full.adapter_bytes(8) == 828_375_040 * 2
    assert full.host_bytes == 4 * (20 * full.adapter_bytes(64) + 10 * full.adapter_bytes(8))


def test_unknown_version_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"engine\.version: '0\.6': memory rules exist for: 0\.20, "):
        ledger("llama-3.1-8b", version="0.6")


def test_weight_tensors_come_in_load_order() -> None:
    from simlora.memory.tensors import shards
    from simlora.scenario.engines.vllm_versions import V0_20

    spec = MODELS["llama-3.1-8b"]
    (shard,) = shards(spec, V0_20.memory, ledger("llama-3.1-8b", enable_lora=False).settings)
    sizes = weight_tensors(shard)
    assert sizes[0] == sizes[-1] == 128256 * 4096 * 2
    assert sizes[1] == 6144 * 4096 * 2
