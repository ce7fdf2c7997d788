"""Token -> adapter mapping, sorted into segments and cut into row tiles."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .errors import require

TILE_ROWS = (1, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class Segments:
    """Tokens of one step grouped by adapter.

    order: int32 [tokens], token indices sorted by adapter (stable), base tokens last. tiles: int32 [bound, 4], rows
    (adapter, first position in `order`, rows in the tile, used tiles of all); used tiles come first, the rest have 0
    rows.
    starts, counts: int32 [slots], each adapter's first position and token count. rows: tokens in a full tile.
    """

    tokens: int
    slots: int
    rows: int
    order: torch.Tensor
    tiles: torch.Tensor
    starts: torch.Tensor
    counts: torch.Tensor

    @property
    def bound(self) -> int:
        """Tiles launched: enough for every mapping of this many tokens over these slots."""
        return int(self.tiles.shape[0])


def tile_bound(tokens: int, slots: int, rows: int) -> int:
    """Most tiles that `tokens` tokens over `slots` adapters can need at `rows` rows a tile; the grid under a CUDA
    graph."""
    distinct = min(tokens, slots)
    return distinct + (tokens - distinct) // rows


def build_segments(token_adapter: torch.Tensor, slots: int, rows: int = 16) -> Segments:
    """Group tokens by adapter, on the mapping's own device, without a host synchronisation (CUDA-graph safe).

    token_adapter: int32 or int64 [tokens], an adapter slot or -1 for a base token. Values of `slots` and above are not
    checked on a GPU. rows: rows of a tile, 1 (one tile for each token) or a power of two from 8 to 128.
    """
    require(token_adapter.dim() == 1, f"token_adapter: {token_adapter.dim()} dimensions, 1 needed")
    require(
        token_adapter.dtype in (torch.int32, torch.int64),
        f"token_adapter: dtype {token_adapter.dtype}, int32 or int64 needed",
    )
    require(rows in TILE_ROWS, f"rows: {rows}, one of {TILE_ROWS} allowed")
    require(slots >= 1, f"slots: {slots}, at least 1 needed")
    tokens, device = int(token_adapter.shape[0]), token_adapter.device
    if device.type == "cpu" and tokens:
        require(
            int(token_adapter.max()) < slots, f"token_adapter: slot {int(token_adapter.max())}, below {slots} needed"
        )
    ids = token_adapter.long()
    key = torch.where(ids < 0, slots, ids)
    order = torch.argsort(key, stable=True).to(torch.int32)
    counts = torch.zeros(slots + 1, dtype=torch.int64, device=device).scatter_add_(0, key, torch.ones_like(key))[:slots]
    starts = torch.cumsum(counts, 0) - counts
    used = (counts + rows - 1) // rows
    ends = torch.cumsum(used, 0)
    tile = torch.arange(tile_bound(tokens, slots, rows), device=device)
    adapter = torch.searchsorted(ends, tile, right=True).clamp_(max=slots - 1)
    skipped = (tile - (ends - used)[adapter]) * rows
    length = torch.where(tile < ends[-1], (counts[adapter] - skipped).clamp(max=rows), 0)
    tiles = torch.stack((adapter, starts[adapter] + skipped, length, ends[-1].expand_as(length)), 1).to(torch.int32)
    return Segments(tokens, slots, rows, order, tiles.contiguous(), starts.to(torch.int32), counts.to(torch.int32))


def to_device(segments: Segments, device: torch.device | str) -> Segments:
    """Segments built on the host, copied to a GPU (asynchronously from pinned memory)."""
    moved = (
        t.to(device, non_blocking=True) for t in (segments.order, segments.tiles, segments.starts, segments.counts)
    )
    return Segments(segments.tokens, segments.slots, segments.rows, *moved)
