"""The padded algorithm that vLLM ships, as a baseline: cost follows slots and the largest rank, not use."""

from __future__ import annotations

import torch

from .checks import check_input, check_output
from .errors import require
from .launch import INTERPRET, cdiv, options, power_of_two
from .layout import GroupWeights, padded_widths
from .padded_kernels import padded_expand, padded_shrink
from .segments import Segments

SPLIT_CHANGE_TOKENS = 128
"""Tokens from which the columns are split 8 instead of 64 ways, in tiles of 32 instead of 256 columns."""


def padded(x: torch.Tensor, weights: GroupWeights, segments: Segments, y: torch.Tensor) -> torch.Tensor:
    """y[t, o_s + n] += scaling * sum over j < R of (sum over c of x[t, c] * A_s[j, c]) * B_s[n, j], R the largest rank.

    Three launches: zero the scratch, shrink (grid: column parts x row tiles of all tokens x rank tiles, slices, slots
    + 1; float32 atomics), expand (grid: row tiles of all tokens x tiles of the widest slice, slices, slots + 1).
    Programs of unused slots, of the base slot and of row tiles beyond an adapter's tokens exit early. An adapter of a
    smaller rank costs as much as R, so storage must be zero in rows beyond its own rank. The split changes at 128
    tokens.

    x: bfloat16 or float16 [tokens, in_features]. weights: pointer array with at least R rows stored for every slot.
    y: [tokens, sum of out_features], added into in place; rows of base tokens stay as they were. Returns y.
    Refused (LayoutError): paged weights, storage of fewer than R rows, other dtypes or devices, strided columns.
    """
    check_input(x, weights, segments)
    check_output(y, weights, segments)
    require(not weights.page_elements, "weights: paged, the padded algorithm takes a pointer array")
    rank = weights.max_rank
    require(
        weights.stored_rank >= rank, f"weights: {weights.stored_rank} rows stored in the smallest slot, {rank} needed"
    )
    if segments.tokens == 0 or rank == 0:
        return y
    few = segments.tokens < SPLIT_CHANGE_TOKENS
    splits, block_k = (64, 256) if few else (8, 32)
    h = torch.zeros(weights.slices, segments.tokens, rank, dtype=torch.float32, device=x.device)
    grid = (splits * cdiv(segments.tokens, 32) * cdiv(rank, 16), weights.slices, weights.slots + 1)
    padded_shrink[grid](
        x,
        segments.order,
        segments.starts,
        segments.counts,
        weights.a_table,
        weights.pool,
        h,
        x.stride(0),
        h.stride(0),
        h.stride(1),
        weights.slots,
        segments.tokens,
        rank,
        weights.in_features,
        SPLITS=splits,
        ROWS=32,
        BN=16,
        BK=block_k,
        UPCAST=INTERPRET,
        **options(4, 2, False),
    )
    widest = max(weights.out_features)
    block_n = min(64 if weights.slices > 1 else 128, max(16, power_of_two(widest)))
    grid = (cdiv(segments.tokens, 64) * cdiv(widest, block_n), weights.slices, weights.slots + 1)
    padded_expand[grid](
        y,
        h,
        segments.order,
        segments.starts,
        segments.counts,
        weights.scaling,
        weights.b_table,
        weights.pool,
        y.stride(0),
        h.stride(0),
        h.stride(1),
        weights.slots,
        segments.tokens,
        rank,
        *padded_widths(weights.out_features),
        widest,
        ROWS=64,
        BN=block_n,
        BK=32,
        UPCAST=INTERPRET,
        **options(4, 2, False),
    )
    return y
