"""Triton kernels for tiles of one row: 32 KiB of weights in flight for each program, before anything is waited for.

Tables and weights are read before a program waits for the kernel launched before it; what that kernel wrote, only
after.
"""

# ruff: noqa: N803  (compile-time parameters are upper case)
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .addressing import block_pointers, blocks_of_slices, matrix_base, slice_of_block


@triton.jit(do_not_specialize=["table_stride", "splits"])
def shrink_rows(
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
    splits,
    SLICES: tl.constexpr,
    RANK_PAD: tl.constexpr,
    BK: tl.constexpr,
    PAGE: tl.constexpr,
    ALIGNED: tl.constexpr,
    EVEN: tl.constexpr,
    PDL: tl.constexpr,
):
    """h[k, p, s * RANK_PAD + j] = sum over columns of part k of x[order[p], c] * A_s[j, c], for j < rank of p's
    adapter.

    One program for each (row tile, 16 rank rows of one slice, part k of BK columns): vector products over the whole
    block at once.
    """
    if PDL:
        gdc_launch_dependents()
    blocks: tl.constexpr = SLICES * RANK_PAD // 16
    pid = tl.program_id(0)
    tile = pid // (blocks * splits)
    within = pid - tile * (blocks * splits)
    split = within // blocks
    row0 = (within - split * blocks) * 16
    part = row0 // RANK_PAD
    adapter = tl.load(tiles + tile * 4)
    first = tl.load(tiles + tile * 4 + 1)
    length = tl.load(tiles + tile * 4 + 2)
    rank = tl.load(ranks + adapter)
    base = matrix_base(table, adapter, part, table_stride, PAGE)
    j = row0 % RANK_PAD + tl.arange(0, 16)
    live = j < rank
    column = split * BK
    out = h + split.to(tl.int64) * h_split_stride + row0 + tl.arange(0, 16)
    if (length > 0) & (row0 % RANK_PAD < rank):
        token = tl.load(order + first).to(tl.int64)
        c = column + tl.arange(0, BK)
        keep = live[:, None]
        if not EVEN:
            keep = keep & (c < dim)[None, :]
        a = tl.load(
            block_pointers(
                base, table, pool, units, adapter, rank, part, j, column, live, table_stride, dim, BK, PAGE, ALIGNED
            ),
            mask=keep,
            other=0.0,
        )
        if PDL:
            gdc_wait()
        if EVEN:
            xv = tl.load(x + token * x_stride + c, cache_modifier=".cg")
        else:
            xv = tl.load(x + token * x_stride + c, mask=c < dim, other=0.0, cache_modifier=".cg")
        single = tl.sum(a.to(tl.float32) * xv.to(tl.float32)[None, :], axis=1)
        tl.store(out + first.to(tl.int64) * h_stride, single, mask=live)
    elif PDL and pid == 0:  # one waiting program is enough: a grid ends after all of its programs
        gdc_wait()


@triton.jit(do_not_specialize=["table_stride", "splits"])
def expand_rows(
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
    BN: tl.constexpr,
    PAGE: tl.constexpr,
    ALIGNED: tl.constexpr,
    EVEN: tl.constexpr,
    PDL: tl.constexpr,
):
    """y[order[p], o_s + n] += scaling * sum over j < rank of (sum over k of h[k, p, s * RANK_PAD + j]) * B_s[n, j].

    One program for each (row tile, BN outputs of one slice): vector products, 16 rank rows at a time, the next rows'
    weights loaded ahead.
    """
    if PDL:
        gdc_launch_dependents()
    per_tile = blocks_of_slices(width0, width1, width2, BN, SLICES)
    pid = tl.program_id(0)
    tile = pid // per_tile
    part, width, y_first, block = slice_of_block(pid - tile * per_tile, width0, width1, width2, BN, SLICES)
    adapter = tl.load(tiles + tile * 4)
    first = tl.load(tiles + tile * 4 + 1)
    length = tl.load(tiles + tile * 4 + 2)
    rank = tl.load(ranks + adapter)
    scale = tl.load(scaling + adapter)
    column = block * BN
    base = matrix_base(table, adapter, part, table_stride, PAGE)
    if (length > 0) & (rank > 0):
        token = tl.load(order + first).to(tl.int64)
        j = tl.arange(0, 16)
        n = column + tl.arange(0, BN)
        keep = (j < rank)[:, None]
        if not EVEN:
            keep = keep & (n < width)[None, :]
        b = tl.load(
            block_pointers(
                base,
                table,
                pool,
                units,
                adapter,
                rank,
                part,
                j,
                column,
                j < rank,
                table_stride,
                width,
                BN,
                PAGE,
                ALIGNED,
            ),
            mask=keep,
            other=0.0,
        )
        if PDL:
            gdc_wait()
        target = y + token * y_stride + y_first + n
        if EVEN:
            held = tl.load(target, cache_modifier=".cg")
        else:
            held = tl.load(target, mask=n < width, other=0.0, cache_modifier=".cg")
        acc = held.to(tl.float32)
        k = tl.arange(0, SPLITS_PAD)
        parts_row = h + part * RANK_PAD + first.to(tl.int64) * h_stride + k.to(tl.int64)[:, None] * h_split_stride
        if RANK_PAD == 16:
            parts = tl.load(parts_row + j[None, :], mask=(k < splits)[:, None], other=0.0, cache_modifier=".cg")
            weight = tl.where(j < rank, tl.sum(parts, axis=0), 0.0) * scale
            acc += tl.sum(b.to(tl.float32) * weight[:, None], axis=0)
        else:
            for j0 in range(0, rank, 16):
                parts = tl.load(
                    parts_row + (j0 + j)[None, :], mask=(k < splits)[:, None], other=0.0, cache_modifier=".cg"
                )
                weight = tl.where(j0 + j < rank, tl.sum(parts, axis=0), 0.0) * scale
                acc += tl.sum(b.to(tl.float32) * weight[:, None], axis=0)
                after = j0 + 16 + j
                keep = (after < rank)[:, None]
                if not EVEN:
                    keep = keep & (n < width)[None, :]
                b = tl.load(
                    block_pointers(
                        base,
                        table,
                        pool,
                        units,
                        adapter,
                        rank,
                        part,
                        after,
                        column,
                        after < rank,
                        table_stride,
                        width,
                        BN,
                        PAGE,
                        ALIGNED,
                    ),
                    mask=keep,
                    other=0.0,
                )
        if EVEN:
            tl.store(target, acc.to(y.dtype.element_ty))
        else:
            tl.store(target, acc.to(y.dtype.element_ty), mask=n < width)
    elif PDL and pid == 0:  # one waiting program is enough: a grid ends after all of its programs
        gdc_wait()
