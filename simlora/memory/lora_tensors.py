"""Bytes of every LoRA slot tensor of one GPU, in the order in which vLLM creates them.

Slots are stacked: one tensor per matrix holds all max_loras slots, each padded to max_lora_rank. With tensor
parallelism, layers split by output keep A whole and shard B; layers split by input shard A and keep B whole;
fully_sharded_loras also splits A of the first kind by rank and B of the second kind by output. Embeddings are never
sharded.
Source: vLLM lora/layers (create_lora_weights of each class); 0.8.5 adds tables for extra vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator

from simlora.memory.shard import Shard

_GPT_OSS = "GptOssForCausalLM"
"""Its experts keep gate and up in one tensor (vLLM FusedMoE3DWithLoRA)."""


def slot_tensors(shard: Shard) -> list[int]:
    """Sizes in bytes for all slots; empty without LoRA."""
    if not shard.settings.enable_lora:
        return []
    scale = shard.settings.max_loras * shard.model.dtype_bytes
    return [elements * scale for elements in _slot_elements(shard)]


def slot_bytes(shard: Shard) -> int:
    """Exact bytes that one more slot takes on one GPU, the rows it adds to embed_tokens (0.8.5) included."""
    if not shard.settings.enable_lora:
        return 0
    elements = sum(_slot_elements(shard))
    if shard.has_embedding_lora and shard.first_stage:
        elements += -(-shard.rules.extra_vocab_rows // shard.tp) * shard.model.hidden_size
    return elements * shard.model.dtype_bytes


def _slot_elements(shard: Shard) -> Iterator[int]:
    """Elements per slot of each tensor."""
    embeddings = shard.settings.slot_modules if shard.has_embedding_lora else ()
    if shard.first_stage and "embed_tokens" in embeddings:
        yield from _embed_tokens(shard)
    for _ in range(shard.layers):
        yield from _attention(shard)
        yield from _moe(shard) if shard.model.is_moe else _mlp(shard)
    if shard.last_stage and "lm_head" in embeddings:
        yield from _lm_head(shard)


def _embed_tokens(shard: Shard) -> Iterator[int]:
    h, rank, extra = shard.model.hidden_size, shard.settings.max_lora_rank, shard.rules.extra_vocab_rows
    if extra:
        yield extra * h
    yield (shard.model.vocab_size + extra) * rank
    yield h * rank


def _lm_head(shard: Shard) -> Iterator[int]:
    h, rank, extra = shard.model.hidden_size, shard.settings.max_lora_rank, shard.rules.extra_vocab_rows
    yield rank * h
    if extra:
        yield -(-(shard.model.vocab_size + extra) // extra) * extra * rank  # padded for the kernels
        yield extra * h
    else:
        yield shard.model.vocab_size * rank


def _attention(shard: Shard) -> Iterator[int]:
    modules, rank = shard.settings.slot_modules, shard.settings.max_lora_rank
    if "q_proj" in modules:
        yield from (_rank_a(shard) * shard.model.hidden_size,) * 3
        yield from (shard.q * rank, shard.kv * rank, shard.kv * rank)
    if "o_proj" in modules:
        yield rank * shard.q
        yield _row_output(shard) * rank


def _mlp(shard: Shard) -> Iterator[int]:
    modules, rank = shard.settings.slot_modules, shard.settings.max_lora_rank
    if "gate_proj" in modules:
        yield from (_rank_a(shard) * shard.model.hidden_size,) * 2
        yield from (shard.ffn * rank,) * 2
    if "down_proj" in modules:
        yield rank * shard.ffn
        yield _row_output(shard) * rank


def _moe(shard: Shard) -> Iterator[int]:
    model, rank, experts = shard.model, shard.settings.max_lora_rank, shard.model.num_experts
    modules = shard.settings.slot_modules
    if shard.settings.router_slots:
        yield rank * model.hidden_size
        yield experts * rank
    if not shard.rules.expert_lora or not {"gate_proj", "down_proj"} & set(modules):
        return
    slices = 1 if model.architecture == _GPT_OSS else 2
    yield from (experts * _rank_a(shard) * model.hidden_size,) * slices
    yield experts * rank * shard.ffn
    yield from (experts * (2 // slices) * shard.ffn * rank,) * slices
    yield experts * _row_output(shard) * rank


def _rank_a(shard: Shard) -> int:
    """Rows of A of a layer that is split by output."""
    rank = shard.settings.max_lora_rank
    return -(-rank // shard.tp) if shard.settings.fully_sharded_loras else rank


def _row_output(shard: Shard) -> int:
    """Rows of B of a layer that is split by input."""
    h = shard.model.hidden_size
    return -(-h // shard.tp) if shard.settings.fully_sharded_loras else h
