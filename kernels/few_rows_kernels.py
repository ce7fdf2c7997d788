"""Triton kernels for tiles of 2 or 4 rows: vector products of one block of weights with all rows, without a loop.

A loop over the rows would keep the block in float32, twice the registers, and half as many programs would fit.
"""
# ruff: noqa: N803  (compile-time parameters are upper case)
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .addressing import block_pointers, matrix_base


@triton.jit
def _token(order, first, length, i: tl.constexpr):
    """Token i of a row tile; token 0 of the step beyond the tile's rows."""
    return tl.load(order + first + i, mask=i < length, other=0).to(tl.int64)


@triton.jit
def _row(pointer, inside):
    """One row of inputs or outputs in float32."""
    return tl.load(pointer, mask=inside, other=0.0, cache_modifier=".cg").to(tl.float32)


@triton.jit(do_not_specialize=["table_stride", "splits"])
def shrink_few(x, order, tiles, ranks, table, pool, units, h, x_stride, h_stride, h_split_stride, table_stride, dim,
               splits, SLICES: tl.constexpr, RANK_PAD: tl.constexpr, ROWS: tl.constexpr, BK: tl.constexpr,
               PAGE: tl.constexpr, ALIGNED: tl.constexpr, EVEN: tl.constexpr, PDL: tl.constexpr):
    """h[k, p, s * RANK_PAD + j] = sum over columns of part k of x[order[p], c] * A_s[j, c]; tiles of 2 or 4 rows."""
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
    if (length > 0) & (row0 % RANK_PAD < rank):
        c = column + tl.arange(0, BK)
        keep = live[:, None]
        if not EVEN:
            keep = keep & (c < dim)[None, :]
        a = tl.load(block_pointers(base, table, pool, units, adapter, rank, part, j, column, live, table_stride, dim,
                                   BK, PAGE, ALIGNED), mask=keep, other=0.0)
        x0 = x + _token(order, first, length, 0) * x_stride + c
        x1 = x + _token(order, first, length, 1) * x_stride + c
        x2 = x1
        x3 = x1
        if ROWS > 2:
            x2 = x + _token(order, first, length, 2) * x_stride + c
            x3 = x + _token(order, first, length, 3) * x_stride + c
        if PDL:
            gdc_wait()
        inside = c < dim
        v0 = _row(x0, inside)
        v1 = _row(x1, inside)
        wide = a.to(tl.float32)
        target = h + split.to(tl.int64) * h_split_stride + first.to(tl.int64) * h_stride + row0 + tl.arange(0, 16)
        if ROWS > 2:
            v2 = _row(x2, inside)
            v3 = _row(x3, inside)
            tl.store(target + 2 * h_stride, tl.sum(wide * v2[None, :], axis=1), mask=live & (length > 2))
            tl.store(target + 3 * h_stride, tl.sum(wide * v3[None, :], axis=1), mask=live & (length > 3))
        tl.store(target, tl.sum(wide * v0[None, :], axis=1), mask=live)
        tl.store(target + h_stride, tl.sum(wide * v1[None, :], axis=1), mask=live & (length > 1))
    else:
        if PDL:
            gdc_wait()


@triton.jit
def _weight(row, columns, used, live, scale):
    """scale * (sum over k of h's parts) of one token, zero beyond the rank."""
    parts = tl.load(row + columns[None, :], mask=used, other=0.0, cache_modifier=".cg")
    return tl.where(live, tl.sum(parts, axis=0), 0.0) * scale


@triton.jit(do_not_specialize=["table_stride", "splits"])
def expand_few(y, h, order, tiles, ranks, scaling, table, pool, units, y_stride, h_stride, h_split_stride, table_stride,
               width0, width1, width2, splits, SLICES: tl.constexpr, RANK_PAD: tl.constexpr, SPLITS_PAD: tl.constexpr,
               ROWS: tl.constexpr, BN: tl.constexpr, PAGE: tl.constexpr, ALIGNED: tl.constexpr, EVEN: tl.constexpr,
               PDL: tl.constexpr):
    """y[order[p], o_s + n] += scaling * sum over j < rank of (sum over k of h[k, p, s * RANK_PAD + j]) * B_s[n, j], for
    tiles of 2 or 4 rows, 16 rank rows at a time."""
    if PDL:
        gdc_launch_dependents()
    per_tile = tl.cdiv(width0, BN)
    if SLICES > 1:
        per_tile += tl.cdiv(width1, BN)
    if SLICES > 2:
        per_tile += tl.cdiv(width2, BN)
    pid = tl.program_id(0)
    tile = pid // per_tile
    block = pid - tile * per_tile
    adapter = tl.load(tiles + tile * 4)
    first = tl.load(tiles + tile * 4 + 1)
    length = tl.load(tiles + tile * 4 + 2)
    rank = tl.load(ranks + adapter)
    scale = tl.load(scaling + adapter)
    part = pid * 0
    width = width0
    y_first = pid * 0
    if SLICES > 1:
        second = block >= tl.cdiv(width0, BN)
        part = tl.where(second, 1, 0)
        width = tl.where(second, width1, width0)
        y_first = tl.where(second, width0, 0)
        block = tl.where(second, block - tl.cdiv(width0, BN), block)
    if SLICES > 2:
        third = (part == 1) & (block >= tl.cdiv(width1, BN))
        part = tl.where(third, 2, part)
        width = tl.where(third, width2, width)
        y_first = tl.where(third, width0 + width1, y_first)
        block = tl.where(third, block - tl.cdiv(width1, BN), block)
    column = block * BN
    base = matrix_base(table, adapter, part, table_stride, PAGE)
    if (length > 0) & (rank > 0):
        j = tl.arange(0, 16)
        n = column + tl.arange(0, BN)
        inside = n < width
        keep = (j < rank)[:, None]
        if not EVEN:
            keep = keep & inside[None, :]
        b = tl.load(block_pointers(base, table, pool, units, adapter, rank, part, j, column, j < rank, table_stride,
                                   width, BN, PAGE, ALIGNED), mask=keep, other=0.0)
        outputs = y + y_first + n
        y0 = outputs + _token(order, first, length, 0) * y_stride
        y1 = outputs + _token(order, first, length, 1) * y_stride
        y2 = y1
        y3 = y1
        if ROWS > 2:
            y2 = outputs + _token(order, first, length, 2) * y_stride
            y3 = outputs + _token(order, first, length, 3) * y_stride
        if PDL:
            gdc_wait()
        acc0 = _row(y0, inside)
        acc1 = _row(y1, inside & (length > 1))
        acc2 = acc1
        acc3 = acc1
        if ROWS > 2:
            acc2 = _row(y2, inside & (length > 2))
            acc3 = _row(y3, inside & (length > 3))
        k = tl.arange(0, SPLITS_PAD)
        used = (k < splits)[:, None]
        row = h + part * RANK_PAD + first.to(tl.int64) * h_stride + k.to(tl.int64)[:, None] * h_split_stride
        if RANK_PAD == 16:
            live = j < rank
            w0 = _weight(row, j, used, live, scale)
            w1 = _weight(row + h_stride, j, used & (length > 1), live, scale)
            if ROWS > 2:
                w2 = _weight(row + 2 * h_stride, j, used & (length > 2), live, scale)
                w3 = _weight(row + 3 * h_stride, j, used & (length > 3), live, scale)
            wide = b.to(tl.float32)
            acc0 += tl.sum(wide * w0[:, None], axis=0)
            acc1 += tl.sum(wide * w1[:, None], axis=0)
            if ROWS > 2:
                acc2 += tl.sum(wide * w2[:, None], axis=0)
                acc3 += tl.sum(wide * w3[:, None], axis=0)
        else:
            for j0 in range(0, rank, 16):
                columns = j0 + j
                live = columns < rank
                w0 = _weight(row, columns, used, live, scale)
                w1 = _weight(row + h_stride, columns, used & (length > 1), live, scale)
                if ROWS > 2:
                    w2 = _weight(row + 2 * h_stride, columns, used & (length > 2), live, scale)
                    w3 = _weight(row + 3 * h_stride, columns, used & (length > 3), live, scale)
                wide = b.to(tl.float32)
                acc0 += tl.sum(wide * w0[:, None], axis=0)
                acc1 += tl.sum(wide * w1[:, None], axis=0)
                if ROWS > 2:
                    acc2 += tl.sum(wide * w2[:, None], axis=0)
                    acc3 += tl.sum(wide * w3[:, None], axis=0)
                after = columns + 16
                keep = (after < rank)[:, None]
                if not EVEN:
                    keep = keep & inside[None, :]
                b = tl.load(block_pointers(base, table, pool, units, adapter, rank, part, after, column, after < rank,
                                           table_stride, width, BN, PAGE, ALIGNED), mask=keep, other=0.0)
        tl.store(y0, acc0.to(y.dtype.element_ty), mask=inside)
        tl.store(y1, acc1.to(y.dtype.element_ty), mask=inside & (length > 1))
        if ROWS > 2:
            tl.store(y2, acc2.to(y.dtype.element_ty), mask=inside & (length > 2))
            tl.store(y3, acc3.to(y.dtype.element_ty), mask=inside & (length > 3))
    else:
        if PDL:
            gdc_wait()
