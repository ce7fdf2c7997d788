"""MBGMM: prefill with adapters of different ranks, each computed at its own."""

from __future__ import annotations

import torch

from . import decode, prefill
from .checks import check_input, check_output, check_partials
from .errors import require
from .layout import GroupWeights
from .segments import Segments
from .sgmv import partials
from .tiles import Tile


def mbgmm(
    x: torch.Tensor,
    weights: GroupWeights,
    segments: Segments,
    y: torch.Tensor,
    h: torch.Tensor | None = None,
    shrink: Tile | None = None,
    expand: Tile | None = None,
    pdl: bool | None = None,
) -> torch.Tensor:
    """y[t, o_s + n] += scaling * sum over j < rank(adapter(t)) of (sum over c of x[t, c] * A_s[j, c]) * B_s[n, j].

    Two launches for all slices, tiled over tokens and columns. x is read once for all slices, y read and written once;
    rows of the weights beyond an adapter's rank are not read.

    x: bfloat16 or float16 [tokens, in_features], unit column stride. y: [tokens, sum of out_features], same dtype, unit
    column stride, added into in place; rows of base tokens are neither read nor written. segments: 16 to 128 rows a
    tile. h: float32 scratch [parts, tokens, slices * rank_pad], allocated when None. shrink, expand, pdl: as in mbgmv.
    Returns y. Refused (LayoutError): other dtypes or devices, strided columns, wrong shapes, segments of one row a
    tile.
    """
    check_input(x, weights, segments)
    check_output(y, weights, segments)
    require(segments.rows >= 16, f"segments: {segments.rows} rows a tile, 16 and more for mbgmm")
    shrink = shrink or decode.pick("shrink", "prefill", weights, segments)
    expand = expand or decode.pick("expand", "prefill", weights, segments)
    h = partials(x, weights, prefill.prefill_splits(weights, shrink)) if h is None else h
    check_partials(h, weights, segments)
    prefill.launch_shrink(x, weights, segments, h, shrink, pdl)
    prefill.launch_expand(h, weights, segments, y, expand, pdl)
    return y
