"""Bytes of every weight tensor of one GPU, in the order in which vLLM creates them."""

from __future__ import annotations

from collections.abc import Iterator

from simlora.memory.shard import Shard


def weight_tensors(shard: Shard) -> list[int]:
    """Sizes in bytes. Linear layers are merged as vLLM merges them: q, k and v; gate and up; all experts of a layer.

    A checkpoint stored in another format (quantized_weight_bytes) is scaled to its size as a whole.
    """
    elements = list(_elements(shard))
    sizes = [count * shard.model.dtype_bytes for count in elements]
    quantized = shard.model.quantized_weight_bytes
    if quantized is None:
        return sizes
    scale = quantized / (shard.model.parameters * shard.model.dtype_bytes)
    return [max(round(size * scale), 1) for size in sizes]


def _elements(shard: Shard) -> Iterator[int]:
    model, h = shard.model, shard.model.hidden_size
    extra = shard.rules.extra_vocab_rows if shard.has_embedding_lora else 0
    if shard.first_stage or (shard.last_stage and model.tie_word_embeddings):
        yield shard.vocab_rows(extra * shard.settings.max_loras) * h
    for layer in range(shard.layers):
        yield from _attention(shard)
        if layer == 0:
            yield model.max_position_embeddings * model.head_dim  # the cosine and sine table, shared by all layers
        yield from _experts(shard) if model.is_moe else (2 * shard.ffn * h, h * shard.ffn)
        yield h
        yield h
    if shard.last_stage:
        yield h
        if not model.tie_word_embeddings:
            yield shard.vocab_rows(extra) * h


def _attention(shard: Shard) -> Iterator[int]:
    model, h = shard.model, shard.model.hidden_size
    qkv = shard.q + 2 * shard.kv
    yield qkv * h
    if model.qkv_bias:
        yield qkv
    yield h * shard.q
    if model.moe_bias:
        yield h
        yield -(-model.num_attention_heads // shard.tp)
    if model.qk_norm:
        yield model.head_dim
        yield model.head_dim


def _experts(shard: Shard) -> Iterator[int]:
    model, h, experts = shard.model, shard.model.hidden_size, shard.model.num_experts
    yield experts * h
    yield experts * 2 * shard.ffn * h
    yield experts * h * shard.ffn
    if model.moe_bias:
        yield experts
        yield experts * 2 * shard.ffn
        yield experts * h
