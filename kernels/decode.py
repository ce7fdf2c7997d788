"""Launches of the decode kernels (few rows per adapter)."""
from __future__ import annotations

from collections.abc import Sequence

import torch

from .decode_kernels import expand_rows, shrink_rows
from .errors import require
from .launch import INTERPRET, dependent_launch, device_index, multiprocessors, options, power_of_two
from .layout import GroupWeights
from .segments import Segments
from .tiles import Shape, Tile, choose, gpu_name

MAX_SPLITS = 32


def cdiv(a: int, b: int) -> int:
    """Ceiling division."""
    return -(-a // b)


def shape_of(kernel: str, phase: str, weights: GroupWeights, segments: Segments) -> Shape:
    """Key of the tuned table for one call."""
    width = weights.in_features if kernel == "shrink" else sum(weights.out_features)
    return Shape(kernel, phase, width, weights.slices, weights.rank_pad, segments.tokens, segments.bound)


def pick(kernel: str, phase: str, weights: GroupWeights, segments: Segments) -> Tile:
    """Tuned tile for one call on the weights' GPU."""
    return choose(shape_of(kernel, phase, weights, segments), gpu_name(device_index(weights.pool)))


def shrink_parts(weights: GroupWeights, tile: Tile) -> tuple[int, int, int]:
    """(columns of a block, blocks of an item, parts of in_features): the tile's, within what widths and pages allow."""
    block = max(16, min(tile.block, power_of_two(weights.in_features)))
    if weights.page_elements:
        block = min(block, weights.block_limit)
    blocks = cdiv(weights.in_features, block)
    steps = min(blocks, max(tile.steps, cdiv(blocks, MAX_SPLITS)))
    return block, steps, cdiv(blocks, steps)


def decode_splits(weights: GroupWeights, segments: Segments, tile: Tile | None = None) -> int:
    """Parts of in_features, the first dimension of the partial sums h."""
    return shrink_parts(weights, tile or pick("shrink", "decode", weights, segments))[2]


def output_block(weights: GroupWeights, block: int) -> int:
    """Outputs of a program: the tile's, no more than the widest slice rounded up or a page boundary allows."""
    block = max(16, min(block, power_of_two(max(weights.out_features))))
    return min(block, weights.block_limit) if weights.page_elements else block


def grid_size(items: int, tensor: torch.Tensor, tile: Tile) -> int:
    """Programs launched: one for each item, at most `waves` for each multiprocessor."""
    return max(1, min(items, multiprocessors(device_index(tensor)) * tile.waves))


def launch_shrink(x: torch.Tensor, weights: GroupWeights, segments: Segments, h: torch.Tensor, tile: Tile,
                  pdl: bool | None = None) -> None:
    """Write the partial sums h [splits, tokens, slices * rank_pad] of every tile."""
    if segments.bound == 0:
        return
    block, steps, splits = shrink_parts(weights, tile)
    require(h.shape[0] == splits, f"h: {h.shape[0]} parts, {splits} needed")
    nr = min(tile.nr, power_of_two(weights.slices * weights.rank_pad))
    items = segments.bound * splits * cdiv(weights.slices * weights.rank_pad, nr)
    early = dependent_launch(device_index(x)) if pdl is None else pdl
    shrink_rows[(grid_size(items, x, tile),)](
        x, segments.order, segments.tiles, weights.ranks, weights.a_table, weights.pool, weights.a_units, h,
        x.stride(0), h.stride(1), h.stride(0), weights.a_table.stride(0), weights.in_features, segments.bound,
        steps, splits, SLICES=weights.slices, RANK_PAD=weights.rank_pad, ROWS=segments.rows, NR=nr, BK=block,
        VECTOR=tile.vector, AHEAD=tile.ahead, PAGE=weights.page_elements, ALIGNED=weights.aligned,
        EVEN=weights.in_features == block * steps * splits, PDL=early, UPCAST=INTERPRET,
        **options(tile.num_warps, 1, early, tile.maxnreg))


def launch_expand(h: torch.Tensor, weights: GroupWeights, segments: Segments, y: torch.Tensor, tile: Tile,
                  pdl: bool | None = None) -> None:
    """Add scaling * (sum of h's parts) B into y."""
    if segments.bound == 0:
        return
    block = output_block(weights, tile.block)
    widths = padded_widths(weights.out_features)
    items = segments.bound * sum(cdiv(w, block) for w in weights.out_features)
    early = dependent_launch(device_index(y)) if pdl is None else pdl
    expand_rows[(grid_size(items, y, tile),)](
        y, h, segments.order, segments.tiles, weights.ranks, weights.scaling, weights.b_table, weights.pool, weights.b_units,
        y.stride(0), h.stride(1), h.stride(0), weights.b_table.stride(0), *widths, segments.bound, h.shape[0],
        SLICES=weights.slices, RANK_PAD=weights.rank_pad, SPLITS_PAD=power_of_two(h.shape[0]),
        ROWS=segments.rows, BN=block, VECTOR=tile.vector, AHEAD=tile.ahead,
        PAGE=weights.page_elements, ALIGNED=weights.aligned, EVEN=all(w % block == 0 for w in weights.out_features),
        PDL=early, UPCAST=INTERPRET, **options(tile.num_warps, 1, early, tile.maxnreg))


def padded_widths(out_features: Sequence[int]) -> tuple[int, int, int]:
    """Three slice widths; absent slices repeat the first, so that a kernel argument keeps its divisibility."""
    first = out_features[0]
    rest = list(out_features[1:]) + [first] * (3 - len(out_features))
    return first, rest[0], rest[1]
