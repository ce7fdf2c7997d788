"""The whole LoRA path of one projection group."""

from __future__ import annotations

import torch

from .launch import device_index
from .layout import GroupWeights
from .mbgmm import mbgmm
from .mbgmv import mbgmv
from .segments import Segments, build_segments
from .sgmv import DECODE_ROWS
from .tiles import choose_rows, gpu_name

ALWAYS_PREFILL_TOKENS = 1024
"""Tokens of a step from which tiles of 64 rows are taken, whatever was fastest with fewer."""


def rows_for(tokens: int, slots: int, rank_pad: int = 16, gpu: str = "") -> int:
    """Rows of a segment tile for a step of this many tokens; one choice for all of a step's groups and layers.

    Low tiles keep more weights in flight and read an adapter's weights again, from L2, for each tile; the GPU's table
    says which height was fastest (without a table 16, from 512 tokens 64). rank_pad: GroupWeights.rank_pad. gpu: device
    name.
    """
    return 64 if tokens >= ALWAYS_PREFILL_TOKENS else choose_rows(tokens, slots, rank_pad, gpu)


def step_segments(token_adapter: torch.Tensor, slots: int, rank_pad: int = 16) -> Segments:
    """Segments of one step at the tile height that suits apply_lora; built once a step, shared by all groups and
    layers. rank_pad: of the weights they will be used with."""
    gpu = gpu_name(device_index(token_adapter)) if token_adapter.is_cuda else ""
    return build_segments(token_adapter, slots, rows_for(int(token_adapter.shape[0]), slots, rank_pad, gpu))


def apply_lora(
    x: torch.Tensor,
    weights: GroupWeights,
    segments: Segments,
    y: torch.Tensor,
    h: torch.Tensor | None = None,
    pdl: bool | None = None,
) -> torch.Tensor:
    """y[t, o_s + n] += scaling * sum over j < rank(adapter(t)) of (sum over c of x[t, c] * A_s[j, c]) * B_s[n, j].

    Two launches for all slices of the group. Kernels follow the segments' tile height (up to 16 rows: decode, above:
    prefill), tiles the tuned table of the GPU. Safe to capture in a CUDA graph: the grid depends on shapes only, so a
    captured step serves every mapping of its tokens over its slots. With no token or no slot in use nothing is written.

    x: bfloat16 or float16 [tokens, in_features], unit column stride. y: [tokens, sum of out_features], same dtype, unit
    column stride, added into in place; rows of base tokens (-1) are neither read nor written. h: float32 scratch or
    None. pdl: programmatic dependent launch (None: where the GPU has it); weights and segments must then have been
    complete before the kernel launched just before this call began. Returns y. Refused (LayoutError): as in mbgmv and
    mbgmm.
    """
    kernel = mbgmv if segments.rows <= DECODE_ROWS else mbgmm
    return kernel(x, weights, segments, y, h=h, pdl=pdl)
