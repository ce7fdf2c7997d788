"""BGMV: one row of work for each token, whatever adapters the tokens share."""

from __future__ import annotations

import torch

from .errors import require
from .layout import GroupWeights
from .mbgmv import mbgmv
from .segments import Segments
from .tiles import Tile


def bgmv(
    x: torch.Tensor,
    weights: GroupWeights,
    rows: Segments,
    y: torch.Tensor,
    shrink: Tile | None = None,
    expand: Tile | None = None,
    pdl: bool | None = None,
) -> torch.Tensor:
    """y[t, o_s + n] += scaling * sum over j < rank(adapter(t)) of (sum over c of x[t, c] * A_s[j, c]) * B_s[n, j].

    Every token reads its adapter's weights for itself, so weight traffic grows with tokens, not with distinct
    adapters: the baseline that segments improve on. Vector products only.

    rows: segments built with rows=1 (one tile for each token). Other arguments, what is written and what is refused:
    as in mbgmv.
    """
    require(rows.rows == 1, f"rows: {rows.rows} rows a tile, bgmv takes segments built with rows=1")
    return mbgmv(x, weights, rows, y, shrink=shrink, expand=expand, pdl=pdl)
