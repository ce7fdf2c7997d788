"""Tensor parallelism: one rank's part of an adapter's matrices, rank-major (A [r, in], B transposed [r, out])."""

from __future__ import annotations

import torch

from .errors import require


def _part(size: int, world: int, rank: int, name: str) -> slice:
    require(0 <= rank < world, f"rank: {rank}, 0 to {world - 1} allowed")
    require(size % world == 0, f"{name}: {size} is not a multiple of {world} ranks")
    return slice(size // world * rank, size // world * (rank + 1))


def shard_column(
    a: torch.Tensor, b: torch.Tensor, world: int, rank: int, split_a: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Column-parallel layer (qkv, gate_up): B keeps this rank's outputs; A is replicated, or split by LoRA rank
    (split_a).

    Outputs of all ranks, concatenated, are the whole. With split_a each rank computes r / world components of x A^T,
    which must be all-gathered before the expand.
    """
    b_part = b[:, _part(b.shape[1], world, rank, "B's outputs")].contiguous()
    return (a[_part(a.shape[0], world, rank, "LoRA rank")].contiguous() if split_a else a), b_part


def shard_row(
    a: torch.Tensor, b: torch.Tensor, world: int, rank: int, split_b: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Row-parallel layer (o, down): A keeps this rank's inputs; B is replicated, or split by outputs (split_b).

    Each rank's output is a partial sum over its inputs; the base layer's all-reduce adds them up, so LoRA needs no
    collective of its own. With split_b the [tokens, r] shrink must be all-reduced and the outputs all-gathered.
    """
    a_part = a[:, _part(a.shape[1], world, rank, "A's inputs")].contiguous()
    return a_part, (b[:, _part(b.shape[1], world, rank, "B's outputs")].contiguous() if split_b else b)
