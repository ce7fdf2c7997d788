"""Launches of the decode kernels (few rows per adapter)."""
from __future__ import annotations

from collections.abc import Sequence

import torch

from .decode_kernels import expand_rows, shrink_rows
from .errors import require
from .few_rows_kernels import expand_few, shrink_few
from .launch import INTERPRET, dependent_launch, device_index, options, power_of_two
from .layout import GroupWeights
from .segments import Segments
from .tiles import Shape, Tile, choose, gpu_name

MAX_SPLITS = 32
"""Parts of in_features at most: more cost the expand more than they hide."""
FEW_BLOCK = {2: 1024, 4: 512}
"""Columns or outputs of a program at most for tiles of 2 and 4 rows: what leaves 128 registers a thread."""
FEW_REGISTERS = 128
"""Register cap of their expand, which needs a few more where ranks exceed 16."""
SUB_ELEMENTS = 8192
"""Weights of one tensor-core step of the expand at the largest rank: what leaves 128 registers a thread."""


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


def shrink_block(weights: GroupWeights, tile: Tile, rows: int) -> int:
    """Columns of a program: the tile's, enough for MAX_SPLITS parts, within what the width and a page boundary
    allow."""
    block = max(32, min(tile.block, FEW_BLOCK.get(rows, tile.block), power_of_two(weights.in_features)))
    while cdiv(weights.in_features, block) > MAX_SPLITS:
        block *= 2
    if weights.page_elements:
        block = min(block, weights.block_limit)
    parts = cdiv(weights.in_features, block)
    require(parts <= MAX_SPLITS,
            f"in_features: {weights.in_features} allows page-aligned tiles of {block} columns, {parts} "
                                 f"parts; at most {MAX_SPLITS} allowed")
    return block


def decode_splits(weights: GroupWeights, segments: Segments, tile: Tile | None = None) -> int:
    """Parts of in_features, the first dimension of the partial sums h."""
    tile = tile or pick("shrink", "decode", weights, segments)
    return cdiv(weights.in_features, shrink_block(weights, tile, segments.rows))


def output_block(weights: GroupWeights, block: int) -> int:
    """Outputs of a program: the tile's, no more than the widest slice rounded up or a page boundary allows."""
    block = max(16, min(block, power_of_two(max(weights.out_features))))
    return min(block, weights.block_limit) if weights.page_elements else block


def launch_shrink(x: torch.Tensor, weights: GroupWeights, segments: Segments, h: torch.Tensor, tile: Tile,
                  pdl: bool | None = None) -> None:
    """Write the partial sums h [splits, tokens, slices * rank_pad] of every tile."""
    if segments.bound == 0:
        return
    block = shrink_block(weights, tile, segments.rows)
    splits = cdiv(weights.in_features, block)
    require(h.shape[0] == splits, f"h: {h.shape[0]} parts, {splits} needed")
    early = dependent_launch(device_index(x)) if pdl is None else pdl
    grid = (segments.bound * splits * (weights.slices * weights.rank_pad // 16),)
    arguments = (x, segments.order, segments.tiles, weights.ranks, weights.a_table, weights.pool, weights.a_units, h,
                 x.stride(0), h.stride(1), h.stride(0), weights.a_table.stride(0), weights.in_features, splits)
    shape = {"SLICES": weights.slices, "RANK_PAD": weights.rank_pad, "ROWS": segments.rows, "BK": block,
             "PAGE": weights.page_elements, "ALIGNED": weights.aligned, "PDL": early,
             "EVEN": weights.in_features % block == 0}
    if segments.rows in FEW_BLOCK:
        shrink_few[grid](*arguments, **shape, **options(tile.num_warps, 1, early, 0))
    else:
        shrink_rows[grid](*arguments, **shape, SUB=min(block, tile.sub), UPCAST=INTERPRET,
                          **options(tile.num_warps, tile.num_stages, early, tile.maxnreg))


def launch_expand(h: torch.Tensor, weights: GroupWeights, segments: Segments, y: torch.Tensor, tile: Tile,
                  pdl: bool | None = None) -> None:
    """Add scaling * (sum of h's parts) B into y."""
    if segments.bound == 0:
        return
    block = output_block(weights, min(tile.block, FEW_BLOCK.get(segments.rows, tile.block)))
    early = dependent_launch(device_index(y)) if pdl is None else pdl
    grid = (segments.bound * sum(cdiv(w, block) for w in weights.out_features),)
    arguments = (y, h, segments.order, segments.tiles, weights.ranks, weights.scaling, weights.b_table, weights.pool,
                 weights.b_units, y.stride(0), h.stride(1), h.stride(0), weights.b_table.stride(0),
                 *padded_widths(weights.out_features), h.shape[0])
    shape = {"SLICES": weights.slices, "RANK_PAD": weights.rank_pad, "SPLITS_PAD": power_of_two(h.shape[0]),
             "ROWS": segments.rows, "BN": block, "PAGE": weights.page_elements, "ALIGNED": weights.aligned,
             "EVEN": all(w % block == 0 for w in weights.out_features), "PDL": early}
    if segments.rows in FEW_BLOCK:
        expand_few[grid](*arguments, **shape, **options(tile.num_warps, 1, early, FEW_REGISTERS))
    else:
        sub = min(block, 256, max(32, SUB_ELEMENTS // weights.rank_pad))
        expand_rows[grid](*arguments, **shape, SUB=sub, UPCAST=INTERPRET,
                          **options(tile.num_warps, 1, early, tile.maxnreg))


def padded_widths(out_features: Sequence[int]) -> tuple[int, int, int]:
    """Three slice widths; absent slices repeat the first, so that a kernel argument keeps its divisibility."""
    first = out_features[0]
    rest = list(out_features[1:]) + [first] * (3 - len(out_features))
    return first, rest[0], rest[1]
