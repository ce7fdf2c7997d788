"""Layout checks shared by the public kernels."""

from __future__ import annotations

import torch

from .errors import require
from .layout import GroupWeights
from .segments import Segments


def check_input(x: torch.Tensor, weights: GroupWeights, segments: Segments) -> None:
    """x: [tokens, in_features], unit column stride, the weights' dtype and device."""
    require(x.dim() == 2, f"x: {x.dim()} dimensions, 2 needed")
    require(
        tuple(x.shape) == (segments.tokens, weights.in_features),
        f"x: shape {tuple(x.shape)}, ({segments.tokens}, {weights.in_features}) needed",
    )
    _check_rows(x, "x", weights)
    require(segments.slots == weights.slots, f"segments: {segments.slots} slots, the weights have {weights.slots}")
    require(segments.tiles.device == x.device, f"segments: on {segments.tiles.device}, x is on {x.device}")


def check_output(y: torch.Tensor, weights: GroupWeights, segments: Segments) -> None:
    """y: [tokens, sum of out_features], unit column stride, the weights' dtype and device."""
    require(y.dim() == 2, f"y: {y.dim()} dimensions, 2 needed")
    width = sum(weights.out_features)
    require(
        tuple(y.shape) == (segments.tokens, width), f"y: shape {tuple(y.shape)}, ({segments.tokens}, {width}) needed"
    )
    _check_rows(y, "y", weights)


def check_partials(h: torch.Tensor, weights: GroupWeights, segments: Segments) -> None:
    """h: float32 [splits, tokens, slices * rank_pad], contiguous."""
    require(h.dtype == torch.float32, f"h: dtype {h.dtype}, float32 needed")
    width = weights.slices * weights.rank_pad
    require(
        h.dim() == 3 and tuple(h.shape[1:]) == (segments.tokens, width),
        f"h: shape {tuple(h.shape)}, (splits, {segments.tokens}, {width}) needed",
    )
    require(h.is_contiguous(), "h: must be contiguous")
    require(h.device == weights.pool.device, f"h: device {h.device}, {weights.pool.device} needed")


def check_uniform_rank(weights: GroupWeights) -> None:
    """Segments of one rank only, as SGMV has it; slots without weights (rank 0) are allowed."""
    ranks = sorted({r for r in weights.host_ranks if r})
    require(len(ranks) <= 1, f"ranks: {ranks}, sgmv takes one rank; use mbgmv or mbgmm for mixed ranks")


def _check_rows(t: torch.Tensor, name: str, weights: GroupWeights) -> None:
    require(t.stride(1) == 1 or t.shape[1] == 1, f"{name}: columns must be contiguous (stride {t.stride(1)})")
    require(t.dtype == weights.dtype, f"{name}: dtype {t.dtype}, the weights are {weights.dtype}")
    require(t.device == weights.pool.device, f"{name}: device {t.device}, the weights are on {weights.pool.device}")
