"""Launches of the decode kernels: the one-row kernels for tiles of one row, the panel kernels for others."""

from __future__ import annotations

import torch

from . import panel
from .decode_kernels import expand_rows, shrink_rows
from .errors import require
from .launch import cdiv, dependent_launch, device_index, options, power_of_two
from .layout import GroupWeights, output_block, padded_widths
from .segments import Segments
from .tiles import MAX_SPLITS, Shape, Tile, choose, gpu_name


def phase_of(segments: Segments) -> str:
    """Which of the decode kernels' tuned entries serve these segments: "decode" (one row a tile), else "panel8" and so
    on."""
    return "decode" if segments.rows == 1 else f"panel{segments.rows}"


def shape_of(kernel: str, phase: str, weights: GroupWeights, segments: Segments) -> Shape:
    """Key of the tuned table for one call."""
    width = weights.in_features if kernel == "shrink" else sum(weights.out_features)
    return Shape(kernel, phase, width, weights.slices, weights.rank_pad, segments.tokens, segments.bound)


def pick(kernel: str, phase: str, weights: GroupWeights, segments: Segments) -> Tile:
    """Tuned tile for one call on the weights' GPU."""
    return choose(shape_of(kernel, phase, weights, segments), gpu_name(device_index(weights.pool)))


def shrink_block(weights: GroupWeights, tile: Tile) -> int:
    """Columns of a program: the tile's, enough for MAX_SPLITS parts, within what the width and a page boundary
    allow."""
    block = max(32, min(tile.block, power_of_two(weights.in_features)))
    while cdiv(weights.in_features, block) > MAX_SPLITS:
        block *= 2
    if weights.page_elements:
        block = min(block, weights.block_limit)
    parts = cdiv(weights.in_features, block)
    require(
        parts <= MAX_SPLITS,
        f"in_features: {weights.in_features} allows page-aligned tiles of {block} columns, {parts} "
        f"parts; at most {MAX_SPLITS} allowed",
    )
    return block


def decode_splits(weights: GroupWeights, segments: Segments, tile: Tile | None = None) -> int:
    """Parts of in_features, the first dimension of the partial sums h."""
    tile = tile or pick("shrink", phase_of(segments), weights, segments)
    return panel.splits(weights, tile) if segments.rows > 1 else cdiv(weights.in_features, shrink_block(weights, tile))


def launch_shrink(
    x: torch.Tensor, weights: GroupWeights, segments: Segments, h: torch.Tensor, tile: Tile, pdl: bool | None = None
) -> None:
    """Write the partial sums h [splits, tokens, slices * rank_pad] of every tile."""
    if segments.bound == 0:
        return
    splits = decode_splits(weights, segments, tile)
    require(h.shape[0] == splits, f"h: {h.shape[0]} parts, {splits} needed")
    early = dependent_launch(device_index(x)) if pdl is None else pdl
    if segments.rows > 1:
        panel.launch_shrink(x, weights, segments, h, tile, early)
        return
    block = shrink_block(weights, tile)
    grid = (segments.bound * splits * (weights.slices * weights.rank_pad // 16),)
    shrink_rows[grid](
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
        splits,
        SLICES=weights.slices,
        RANK_PAD=weights.rank_pad,
        BK=block,
        PAGE=weights.page_elements,
        ALIGNED=weights.aligned,
        EVEN=weights.in_features % block == 0,
        PDL=early,
        **options(tile.num_warps, tile.num_stages, early, tile.maxnreg),
    )


def launch_expand(
    h: torch.Tensor, weights: GroupWeights, segments: Segments, y: torch.Tensor, tile: Tile, pdl: bool | None = None
) -> None:
    """Add scaling * (sum of h's parts) B into y."""
    if segments.bound == 0:
        return
    early = dependent_launch(device_index(y)) if pdl is None else pdl
    if segments.rows > 1:
        panel.launch_expand(h, weights, segments, y, tile, early)
        return
    block = output_block(weights, tile.block)
    grid = (segments.bound * sum(cdiv(w, block) for w in weights.out_features),)
    expand_rows[grid](
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
        SLICES=weights.slices,
        RANK_PAD=weights.rank_pad,
        SPLITS_PAD=power_of_two(h.shape[0]),
        BN=block,
        PAGE=weights.page_elements,
        ALIGNED=weights.aligned,
        EVEN=all(w % block == 0 for w in weights.out_features),
        PDL=early,
        **options(tile.num_warps, 1, early, tile.maxnreg),
    )
