"""Bytes of one adapter on one of the GPUs that share a layer."""

from __future__ import annotations

from typing import NamedTuple

from simlora.scenario.lora_modules import EMBEDDINGS, module_shape
from simlora.scenario.model import ModelSpec

_SPLIT_BY_INPUT = ("o_proj", "down_proj")


class MatrixPair(NamedTuple):
    """Elements of A and B of one copy of a module on one GPU."""

    a: int
    b: int
    copies: int


def module_shard(model: ModelSpec, module: str, rank: int, tp: int, partitioned: bool) -> MatrixPair:
    """The matrices of a module. tp: tensor-parallel degree.

    Layers split by output keep A whole and split B, layers split by input split A and keep B whole (vLLM, SGLang).
    partitioned splits all four, the first A and the last B along rank and output (S-LoRA section 6, LoRAX): no GPU
    holds what another does. Embeddings are never split. Key and value heads are replicated where there are fewer of
    them than GPUs.
    """
    width_in, width_out, copies = module_shape(model, module)
    if module in EMBEDDINGS:
        return MatrixPair(rank * width_in, rank * width_out, copies)
    if module in _SPLIT_BY_INPUT:
        rows = _divide(width_out, tp) if partitioned else width_out
        return MatrixPair(rank * _divide(width_in, tp), rank * rows, copies)
    if module in ("k_proj", "v_proj"):
        out = max(_divide(model.num_key_value_heads, tp), 1) * model.head_dim
    else:
        out = _divide(width_out, tp)
    rank_a = _divide(rank, tp) if partitioned else rank
    return MatrixPair(rank_a * width_in, rank * out, copies)


def adapter_shard_bytes(
    model: ModelSpec, rank: int, modules: tuple[str, ...], tp: int = 1, partitioned: bool = False
) -> int:
    """One adapter of that rank on one GPU, all layers; the whole adapter with tp 1."""
    pairs = [module_shard(model, module, rank, tp, partitioned) for module in modules]
    return sum((pair.a + pair.b) * pair.copies for pair in pairs) * model.dtype_bytes


def _divide(value: int, parts: int) -> int:
    return -(-value // parts)
