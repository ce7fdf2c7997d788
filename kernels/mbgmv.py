"""MBGMV: decode with adapters of different ranks, each computed at its own."""

from __future__ import annotations

import torch

from . import decode
from .checks import check_input, check_output, check_partials
from .errors import require
from .layout import GroupWeights
from .segments import Segments
from .sgmv import DECODE_ROWS, partials
from .tiles import Tile


def mbgmv(
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

    Two launches for all slices. Every adapter is read and multiplied at its own rank (1 to 256): no padding in memory
    traffic. Tiles of one row use vector products, others the tensor cores; an adapter's weights are read once for
    each tile of `segments.rows` (1, 8 or 16) tokens.

    x: bfloat16 or float16 [tokens, in_features], unit column stride. y: [tokens, sum of out_features], same dtype, unit
    column stride, added into in place; rows of base tokens are neither read nor written. h: float32 scratch
    [parts, tokens, slices * rank_pad], allocated when None. shrink, expand: tiles, chosen from the tuned table when
    None. pdl: programmatic dependent launch; None = where the GPU has it. With it the weights and the segments must
    have been complete before the kernel launched just before this call began. Returns y.
    Refused (LayoutError): other dtypes or devices, strided columns, wrong shapes, segments of more than 16 rows a tile.
    """
    check_input(x, weights, segments)
    check_output(y, weights, segments)
    require(segments.rows <= DECODE_ROWS, f"segments: {segments.rows} rows a tile, at most {DECODE_ROWS} for mbgmv")
    shrink = shrink or decode.pick("shrink", decode.phase_of(segments), weights, segments)
    expand = expand or decode.pick("expand", decode.phase_of(segments), weights, segments)
    h = partials(x, weights, decode.decode_splits(weights, segments, shrink)) if h is None else h
    check_partials(h, weights, segments)
    decode.launch_shrink(x, weights, segments, h, shrink, pdl)
    decode.launch_expand(h, weights, segments, y, expand, pdl)
    return y
