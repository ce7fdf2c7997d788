"""SGMV: segments of tokens that share an adapter, every adapter of one rank."""

from __future__ import annotations

import torch

from . import decode, prefill
from .checks import check_input, check_output, check_partials, check_uniform_rank
from .layout import GroupWeights
from .segments import Segments

DECODE_ROWS = 16
"""Segment tiles of up to this many rows take the decode kernels."""


def sgmv_shrink(
    x: torch.Tensor, weights: GroupWeights, segments: Segments, h: torch.Tensor | None = None
) -> torch.Tensor:
    """h[k, p, s * rank_pad + j] = sum over columns c of part k of x[order[p], c] * A_s[adapter(order[p])][j, c].

    The sum of h over its parts k is x A^T in float32. The parts spread one segment over the GPU without atomics or a
    zeroed buffer; a segment's weights are read once for each tile of `segments.rows` tokens.

    x: bfloat16 or float16 [tokens, in_features], unit column stride. weights: GroupWeights, one rank (1 to 256) in all
    slots. segments: of the same slots. h: float32 [parts, tokens, slices * rank_pad], written in place where a token
    has an adapter and j < rank, left as it was elsewhere; allocated when None. Returns h.
    Refused (LayoutError): mixed ranks, other dtypes or devices, strided columns, a wrong shape.
    """
    check_input(x, weights, segments)
    check_uniform_rank(weights)
    phase = decode if segments.rows <= DECODE_ROWS else prefill
    tile = decode.pick("shrink", decode.phase_of(segments) if phase is decode else "prefill", weights, segments)
    parts = decode.decode_splits(weights, segments, tile) if phase is decode else prefill.prefill_splits(weights, tile)
    h = partials(x, weights, parts) if h is None else h
    check_partials(h, weights, segments)
    phase.launch_shrink(x, weights, segments, h, tile)
    return h


def sgmv_expand(h: torch.Tensor, weights: GroupWeights, segments: Segments, y: torch.Tensor) -> torch.Tensor:
    """y[order[p], o_s + n] += scaling * sum over j of (sum over k of h[k, p, s * rank_pad + j]) * B_s[adapter][n, j].

    h: float32 [parts, tokens, slices * rank_pad] as sgmv_shrink gives it. weights: one rank in all slots; scaling is
    applied here, once. y: [tokens, sum of out_features], the weights' dtype, unit column stride, added into in place;
    rows of base tokens are neither read nor written. Returns y.
    Refused (LayoutError): mixed ranks, other dtypes or devices, strided columns, a wrong shape.
    """
    check_partials(h, weights, segments)
    check_output(y, weights, segments)
    check_uniform_rank(weights)
    if segments.rows <= DECODE_ROWS:
        tile = decode.pick("expand", decode.phase_of(segments), weights, segments)
        decode.launch_expand(h, weights, segments, y, tile)
    else:
        prefill.launch_expand(h, weights, segments, y, decode.pick("expand", "prefill", weights, segments))
    return y


def partials(x: torch.Tensor, weights: GroupWeights, parts: int) -> torch.Tensor:
    """An uninitialised buffer for partial sums."""
    return torch.empty(parts, x.shape[0], weights.slices * weights.rank_pad, dtype=torch.float32, device=x.device)
