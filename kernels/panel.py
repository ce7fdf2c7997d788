"""Launches of the panel kernels (tiles of 8 or 16 rows)."""

from __future__ import annotations

import torch

from .launch import INTERPRET, cdiv, device_index, multiprocessors, options, power_of_two
from .layout import GroupWeights, output_block, padded_widths
from .panel_kernels import expand_panel, shrink_panel
from .segments import Segments
from .tiles import MAX_SPLITS, Tile

PROGRAMS = 6
"""Programs of a grid for each multiprocessor, about, where the tile does not say: what is resident at once, so that the
next kernel's programs find room early. More row tiles than that leaves room for are taken in turns."""
PANEL_ELEMENTS = 16384
"""Weights of an expand program at the largest rank: 32 KiB, 64 registers of 128 threads."""


def columns(weights: GroupWeights, tile: Tile) -> int:
    """Columns of a shrink program: the tile's, enough for MAX_SPLITS parts, within what the width and a page boundary
    allow."""
    block = max(32, min(tile.block, power_of_two(weights.in_features)))
    while cdiv(weights.in_features, block) > MAX_SPLITS:
        block *= 2
    return min(block, weights.block_limit) if weights.page_elements else block


def outputs(weights: GroupWeights, tile: Tile) -> int:
    """Outputs of an expand program."""
    return max(64, output_block(weights, min(tile.block, PANEL_ELEMENTS // weights.rank_pad)))


def splits(weights: GroupWeights, tile: Tile) -> int:
    """Parts of in_features, the first dimension of the partial sums h."""
    return cdiv(weights.in_features, columns(weights, tile))


def lanes(segments: Segments, tile: Tile, per_tile: int, device: int) -> int:
    """Row tiles that a grid of `per_tile` programs each works on at a time."""
    return min(segments.bound, max(1, (tile.programs or PROGRAMS) * multiprocessors(device) // per_tile))


def launch_shrink(
    x: torch.Tensor, weights: GroupWeights, segments: Segments, h: torch.Tensor, tile: Tile, pdl: bool
) -> None:
    """Write the partial sums h [splits, tokens, slices * rank_pad] of every tile."""
    block, parts, nr = columns(weights, tile), h.shape[0], min(tile.nr, weights.rank_pad)
    warps = min(tile.num_warps, block // 32)
    per_tile = parts * (weights.slices * weights.rank_pad // nr)
    turns = lanes(segments, tile, per_tile, device_index(x))
    shrink_panel[(turns * per_tile,)](
        x,
        segments.order,
        segments.tiles,
        weights.ranks,
        weights.a_table,
        weights.pool,
        weights.a_units,
        h,
        x.stride(0),
        h.stride(1),
        h.stride(0),
        weights.a_table.stride(0),
        weights.in_features,
        parts,
        turns,
        SLICES=weights.slices,
        RANK_PAD=weights.rank_pad,
        ROWS=segments.rows,
        NR=nr,
        BK=block,
        WARPS=warps,
        TURNS=turns < segments.bound,
        PAGE=weights.page_elements,
        ALIGNED=weights.aligned,
        EVEN=weights.in_features % block == 0,
        PDL=pdl,
        UPCAST=INTERPRET,
        **options(warps, 1, pdl, tile.maxnreg),
    )


def launch_expand(
    h: torch.Tensor, weights: GroupWeights, segments: Segments, y: torch.Tensor, tile: Tile, pdl: bool
) -> None:
    """Add scaling * (sum of h's parts) B into y."""
    block = outputs(weights, tile)
    warps = min(tile.num_warps, block // 64)
    per_tile = sum(cdiv(w, block) for w in weights.out_features)
    turns = lanes(segments, tile, per_tile, device_index(y))
    expand_panel[(turns * per_tile,)](
        y,
        h,
        segments.order,
        segments.tiles,
        weights.ranks,
        weights.scaling,
        weights.b_table,
        weights.pool,
        weights.b_units,
        y.stride(0),
        h.stride(1),
        h.stride(0),
        weights.b_table.stride(0),
        *padded_widths(weights.out_features),
        h.shape[0],
        turns,
        SLICES=weights.slices,
        RANK_PAD=weights.rank_pad,
        SPLITS_PAD=power_of_two(h.shape[0]),
        ROWS=segments.rows,
        BN=block,
        WARPS=warps,
        TURNS=turns < segments.bound,
        PAGE=weights.page_elements,
        ALIGNED=weights.aligned,
        EVEN=all(w % block == 0 for w in weights.out_features),
        PDL=pdl,
        UPCAST=INTERPRET,
        **options(warps, 1, pdl, tile.maxnreg),
    )
