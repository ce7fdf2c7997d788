"""Fills Triton's cache with the panel kernels that tune_panel times, in parallel."""

from __future__ import annotations

import multiprocessing
from contextlib import suppress

import torch
from triton.errors import TritonError

from . import decode
from .layout import GroupWeights
from .measure import LLAMA_8B, layer_weights, token_mapping
from .segments import Segments, build_segments
from .sgmv import partials
from .tiles import Tile, default_tile
from .tune_tiles import expand_tiles, shrink_tiles

TOKENS = 2048
"""Enough row tiles for a grid of one program a multiprocessor to take turns."""
GRIDS = (1, 1 << 20)
"""Programs a multiprocessor: row tiles in turns, and every row tile with programs of its own."""
Item = tuple[int, int, int, int]


def share(item: Item) -> None:
    """Compile the shrinks, or the expands of one number of parts, of one group (a worker process)."""
    rank, rows, index, parts = item
    group = LLAMA_8B[index]
    w = layer_weights([group], (rank,) * 8, 1)[0][0]
    segments = build_segments(token_mapping(TOKENS, 8).cuda(), w.slots, rows)
    x = torch.randn(TOKENS, group.in_features, device="cuda", dtype=w.dtype)
    y = torch.zeros(TOKENS, sum(group.out_features), device="cuda", dtype=w.dtype)
    kernel, tiles = ("expand", expand_tiles) if parts else ("shrink", shrink_tiles)
    shape = decode.shape_of(kernel, decode.phase_of(segments), w, segments)
    for tile in {*tiles(rows, w.rank_pad), default_tile(shape)}:
        for programs in GRIDS:
            with suppress(RuntimeError, ValueError, TritonError):
                launch(w, segments, x, y, parts, tile.with_programs(programs))
    torch.cuda.synchronize()


def launch(w: GroupWeights, segments: Segments, x: torch.Tensor, y: torch.Tensor, parts: int, tile: Tile) -> None:
    """One shrink (parts 0) or expand."""
    h = partials(x, w, parts or decode.decode_splits(w, segments, tile))
    if parts:
        decode.launch_expand(h.zero_(), w, segments, y, tile)
    else:
        decode.launch_shrink(x, w, segments, h, tile)


def precompile(workers: int) -> None:
    """Kernels are keyed by slices, rank_pad, rows, tile and, in the expand, parts (a power of two)."""
    work = [
        (rank, rows, group, parts)
        for parts in (0, 4, 8, 16, 32)
        for rows in (8, 16)
        for rank in (64, 16)
        for group in range(3)
        if parts <= 8 or group == 1
    ]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        pool.map(share, work, chunksize=1)
