"""Tiles of the panel kernels worth timing: compiled for sm_90 they keep 40 to 160 KiB of weights in flight a
multiprocessor and spill next to no registers."""

from __future__ import annotations

from .tiles import Tile


def shrink_tiles(rows: int, rank_pad: int) -> list[Tile]:
    """Shrink tiles for one height (8 or 16) and largest rank."""
    if rows == 8:
        last = Tile(block=512, maxnreg=64) if rank_pad == 16 else Tile(block=512, nr=32, maxnreg=112)
        return [Tile(block=1024, maxnreg=96), Tile(block=1024, num_warps=8, maxnreg=64), last]
    if rank_pad == 16:
        return [Tile(block=512, maxnreg=80), Tile(block=1024, num_warps=8, maxnreg=80)]
    return [Tile(block=512, nr=32, maxnreg=128), Tile(block=512, maxnreg=80), Tile(block=256, nr=64, maxnreg=128)]


def expand_tiles(rows: int, rank_pad: int) -> list[Tile]:
    """Expand tiles for one height (8 or 16) and largest rank."""
    if rank_pad > 16:
        if rows == 8:
            return [
                Tile(block=256, maxnreg=128),
                Tile(block=256, maxnreg=96),
                Tile(block=128, num_warps=2, maxnreg=128),
            ]
        return [Tile(block=256, maxnreg=168), Tile(block=256, maxnreg=128)]
    if rows == 8:
        return [
            Tile(block=1024, maxnreg=128),
            Tile(block=512, maxnreg=80),
            Tile(block=1024, num_warps=8, maxnreg=64),
            Tile(block=512, num_warps=8, maxnreg=56),
        ]
    return [Tile(block=512, maxnreg=128), Tile(block=256, maxnreg=96), Tile(block=512, num_warps=8, maxnreg=80)]
