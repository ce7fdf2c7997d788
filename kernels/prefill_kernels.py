"""Triton kernels for many rows per adapter: pipelined loops over columns (shrink) and outputs (expand)."""

# ruff: noqa: N803  (compile-time parameters are upper case)
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .addressing import blocks_of_slices, row_starts, slice_of_block


@triton.jit(do_not_specialize=["table_stride", "steps", "splits"])
def shrink_tiles(
    x,
    order,
    tiles,
    ranks,
    table,
    pool,
    units,
    h,
    x_stride,
    h_stride,
    h_split_stride,
    table_stride,
    dim,
    steps,
    splits,
    SLICES: tl.constexpr,
    RANK_PAD: tl.constexpr,
    ROWS: tl.constexpr,
    NR: tl.constexpr,
    BK: tl.constexpr,
    PAGE: tl.constexpr,
    ALIGNED: tl.constexpr,
    EVEN: tl.constexpr,
    PDL: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """h[k, p, s * RANK_PAD + j] = sum over columns of part k of x[order[p], c] * A_s[j, c], one program for each
    (row tile, part k, NR of the slices' rank rows); NR spans all slices where it can, so that x is read once."""
    row_blocks: tl.constexpr = (SLICES * RANK_PAD + NR - 1) // NR
    if PDL:
        gdc_launch_dependents()
    pid = tl.program_id(0)
    tile = pid // (row_blocks * splits)
    within = pid - tile * (row_blocks * splits)
    split = within // row_blocks
    row0 = (within - split * row_blocks) * NR
    length = tl.load(tiles + tile * 4 + 2)
    if length > 0:
        adapter = tl.load(tiles + tile * 4)
        first = tl.load(tiles + tile * 4 + 1)
        rank = tl.load(ranks + adapter)
        if row0 % RANK_PAD < rank:
            rows = row0 + tl.arange(0, NR)
            part = rows // RANK_PAD
            j = rows % RANK_PAD
            live = (j < rank) & (part < SLICES)
            m = tl.arange(0, ROWS)
            here = m < length
            token = tl.load(order + first + m, mask=here, other=0).to(tl.int64)
            offsets = tl.arange(0, BK)
            x_rows = x + token * x_stride
            column0 = split * steps * BK
            acc = tl.zeros((ROWS, NR), dtype=tl.float32)
            if PAGE == 0:
                fixed = row_starts(
                    table, pool, units, adapter, rank, part, j, column0, live, table_stride, dim, PAGE, ALIGNED
                )
            if PDL:
                gdc_wait()
            for step in range(0, steps):
                column = column0 + step * BK
                if PAGE == 0:
                    starts = fixed + step * BK
                else:
                    starts = row_starts(
                        table,
                        pool,
                        units,
                        adapter,
                        rank,
                        part,
                        j,
                        column,
                        live & (column < dim),
                        table_stride,
                        dim,
                        PAGE,
                        ALIGNED,
                    )
                source = x_rows[:, None] + (column + offsets)[None, :]
                if EVEN:
                    xt = tl.load(source, mask=here[:, None], other=0.0)
                    a = tl.load(starts[:, None] + offsets[None, :], mask=live[:, None], other=0.0)
                else:
                    inside = column + offsets < dim
                    xt = tl.load(source, mask=here[:, None] & inside[None, :], other=0.0)
                    a = tl.load(starts[:, None] + offsets[None, :], mask=live[:, None] & inside[None, :], other=0.0)
                if UPCAST:
                    acc += tl.dot(xt.to(tl.float32), tl.trans(a.to(tl.float32)), input_precision="ieee")
                else:
                    acc = tl.dot(xt, tl.trans(a), acc)
            target = h + split.to(tl.int64) * h_split_stride + rows[None, :]
            target += (first + m).to(tl.int64)[:, None] * h_stride
            tl.store(target, acc, mask=here[:, None] & live[None, :])
    if PDL and pid == 0:  # one waiting program is enough: a grid ends after all of its programs
        gdc_wait()


@triton.jit(do_not_specialize=["table_stride", "splits"])
def expand_tiles(
    y,
    h,
    order,
    tiles,
    ranks,
    scaling,
    table,
    pool,
    units,
    y_stride,
    h_stride,
    h_split_stride,
    table_stride,
    width0,
    width1,
    width2,
    splits,
    SLICES: tl.constexpr,
    RANK_PAD: tl.constexpr,
    SPLITS_PAD: tl.constexpr,
    ROWS: tl.constexpr,
    BN: tl.constexpr,
    CHUNK: tl.constexpr,
    PAGE: tl.constexpr,
    ALIGNED: tl.constexpr,
    EVEN: tl.constexpr,
    PDL: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """y[order[p], o_s + n] += scaling * sum over j < rank of (sum over k of h[k, p, s * RANK_PAD + j]) * B_s[n, j], one
    program for each (row tile, CHUNK blocks of BN outputs of one slice): h is summed once for all of them."""
    span: tl.constexpr = BN * CHUNK
    per_tile = blocks_of_slices(width0, width1, width2, span, SLICES)
    if PDL:
        gdc_launch_dependents()
    pid = tl.program_id(0)
    tile = pid // per_tile
    part, width, y_first, block = slice_of_block(pid - tile * per_tile, width0, width1, width2, span, SLICES)
    length = tl.load(tiles + tile * 4 + 2)
    if length > 0:
        adapter = tl.load(tiles + tile * 4)
        first = tl.load(tiles + tile * 4 + 1)
        rank = tl.load(ranks + adapter)
        scale = tl.load(scaling + adapter)
        if rank > 0:
            j = tl.arange(0, RANK_PAD)
            live = j < rank
            m = tl.arange(0, ROWS)
            here = m < length
            token = tl.load(order + first + m, mask=here, other=0).to(tl.int64)
            y_rows = y + token * y_stride + y_first
            offsets = tl.arange(0, BN)
            column0 = block * span
            if PAGE == 0:
                fixed = row_starts(
                    table,
                    pool,
                    units,
                    adapter,
                    rank,
                    part + j * 0,
                    j,
                    column0,
                    live,
                    table_stride,
                    width,
                    PAGE,
                    ALIGNED,
                )
            if PDL:
                gdc_wait()
            weight = (
                summed_parts(
                    h + part * RANK_PAD + j,
                    first,
                    h_stride,
                    h_split_stride,
                    splits,
                    here,
                    live,
                    SPLITS_PAD,
                    ROWS,
                    RANK_PAD,
                )
                * scale
            )
            if UPCAST:
                left = weight
            else:
                left = weight.to(pool.dtype.element_ty)
            for step in range(0, tl.minimum(CHUNK, tl.cdiv(width - column0, BN))):
                column = column0 + step * BN
                if PAGE == 0:
                    starts = fixed + step * BN
                else:
                    starts = row_starts(
                        table,
                        pool,
                        units,
                        adapter,
                        rank,
                        part + j * 0,
                        j,
                        column,
                        live,
                        table_stride,
                        width,
                        PAGE,
                        ALIGNED,
                    )
                target = y_rows[:, None] + (column + offsets)[None, :]
                keep = here[:, None]
                own = live[:, None]
                if not EVEN:
                    inside = column + offsets < width
                    keep = keep & inside[None, :]
                    own = own & inside[None, :]
                b = tl.load(starts[:, None] + offsets[None, :], mask=own, other=0.0)
                base = tl.load(target, mask=keep, other=0.0, cache_modifier=".cg")
                if UPCAST:
                    product = tl.dot(left, b.to(tl.float32), input_precision="ieee")
                else:
                    product = tl.dot(left, b)
                tl.store(target, (base.to(tl.float32) + product).to(y.dtype.element_ty), mask=keep)
    if PDL and pid == 0:  # one waiting program is enough: a grid ends after all of its programs
        gdc_wait()


@triton.jit
def summed_parts(
    h_column,
    first,
    h_stride,
    h_split_stride,
    splits,
    here,
    live,
    SPLITS_PAD: tl.constexpr,
    ROWS: tl.constexpr,
    RANK_PAD: tl.constexpr,
):
    """sum over k < splits of h[k, first + m, column j], float32 [ROWS, RANK_PAD], zero beyond the rank.

    Columns beyond the rank are loaded and dropped: a mask that changes from column to column would split wide loads.
    """
    row = h_column[None, :] + (first + tl.arange(0, ROWS)).to(tl.int64)[:, None] * h_stride
    total = tl.zeros((ROWS, RANK_PAD), dtype=tl.float32)
    for k in tl.static_range(SPLITS_PAD):
        total += tl.load(row + k * h_split_stride, mask=(here & (k < splits))[:, None], other=0.0, cache_modifier=".cg")
    return tl.where(live[None, :], total, 0.0)
