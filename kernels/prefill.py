"""Launches of the prefill kernels (many rows per adapter)."""

from __future__ import annotations

import torch

from .errors import require
from .launch import INTERPRET, cdiv, dependent_launch, device_index, options, power_of_two
from .layout import GroupWeights, output_block, padded_widths
from .prefill_kernels import expand_tiles, shrink_tiles
from .segments import Segments
from .tiles import Tile


def prefill_splits(weights: GroupWeights, tile: Tile) -> int:
    """Parts of in_features that are not empty, the first dimension of the partial sums h."""
    steps = _steps(weights, tile)
    return cdiv(weights.in_features, steps * _block(weights, tile))


def _block(weights: GroupWeights, tile: Tile) -> int:
    block = max(16, min(tile.block, power_of_two(weights.in_features)))
    return min(block, weights.block_limit) if weights.page_elements else block


def _steps(weights: GroupWeights, tile: Tile) -> int:
    return cdiv(weights.in_features, _block(weights, tile) * tile.splits)


def launch_shrink(
    x: torch.Tensor, weights: GroupWeights, segments: Segments, h: torch.Tensor, tile: Tile, pdl: bool | None = None
) -> None:
    """Write the partial sums h [splits, tokens, slices * rank_pad] of every tile."""
    if segments.bound == 0:
        return
    block, steps, splits = _block(weights, tile), _steps(weights, tile), prefill_splits(weights, tile)
    require(segments.rows >= 16, f"segments: {segments.rows} rows a tile, 16 and more needed")
    require(h.shape[0] == splits, f"h: {h.shape[0]} parts, {splits} needed")
    nr = max(16, min(tile.nr, power_of_two(weights.slices * weights.rank_pad)))
    early = dependent_launch(device_index(x)) if pdl is None else pdl
    grid = (segments.bound * splits * cdiv(weights.slices * weights.rank_pad, nr),)
    shrink_tiles[grid](
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
        steps,
        splits,
        SLICES=weights.slices,
        RANK_PAD=weights.rank_pad,
        ROWS=segments.rows,
        NR=nr,
        BK=block,
        PAGE=weights.page_elements,
        ALIGNED=weights.aligned,
        EVEN=weights.in_features == steps * splits * block,
        PDL=early,
        UPCAST=INTERPRET,
        **options(tile.num_warps, tile.num_stages, early, tile.maxnreg),
    )


def launch_expand(
    h: torch.Tensor, weights: GroupWeights, segments: Segments, y: torch.Tensor, tile: Tile, pdl: bool | None = None
) -> None:
    """Add scaling * (sum of h's parts) B into y."""
    if segments.bound == 0:
        return
    require(segments.rows >= 16, f"segments: {segments.rows} rows a tile, 16 and more needed")
    block = output_block(weights, tile.block)
    per_tile = sum(cdiv(w, block * tile.chunk) for w in weights.out_features)
    early = dependent_launch(device_index(y)) if pdl is None else pdl
    expand_tiles[(segments.bound * per_tile,)](
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
        ROWS=segments.rows,
        BN=block,
        CHUNK=tile.chunk,
        PAGE=weights.page_elements,
        ALIGNED=weights.aligned,
        EVEN=all(w % block == 0 for w in weights.out_features),
        PDL=early,
        UPCAST=INTERPRET,
        **options(tile.num_warps, tile.num_stages, early, tile.maxnreg),
    )
