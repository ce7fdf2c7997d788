"""Triton kernels for few rows per adapter: 32 KiB of weights in flight for each program, before anything is waited for.

Tables and weights are read before a program waits for the kernel launched before it; what that kernel wrote, only
after.
"""
# ruff: noqa: N803  (compile-time parameters are upper case)
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .addressing import block_pointers, matrix_base


@triton.jit(do_not_specialize=["table_stride", "splits"])
def shrink_rows(x, order, tiles, ranks, table, pool, units, h, x_stride, h_stride, h_split_stride, table_stride, dim,
                splits,
                SLICES: tl.constexpr, RANK_PAD: tl.constexpr, ROWS: tl.constexpr, BK: tl.constexpr, SUB: tl.constexpr,
                PAGE: tl.constexpr, ALIGNED: tl.constexpr, EVEN: tl.constexpr, PDL: tl.constexpr, UPCAST: tl.constexpr):
    """h[k, p, s * RANK_PAD + j] = sum over columns of part k of x[order[p], c] * A_s[j, c], for j < rank of p's
    adapter.

    One program for each (row tile, 16 rank rows of one slice, part k of BK columns). A tile of one row takes vector
    products over the whole block at once, others the tensor cores in steps of SUB columns.
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
        if length == 1:
            c = column + tl.arange(0, BK)
            keep = live[:, None]
            if not EVEN:
                keep = keep & (c < dim)[None, :]
            a = tl.load(block_pointers(base, table, pool, units, adapter, rank, part, j, column, live, table_stride,
                                       dim, BK, PAGE,
                                       ALIGNED), mask=keep, other=0.0)
            if PDL:
                gdc_wait()
            if EVEN:
                xv = tl.load(x + token * x_stride + c, cache_modifier=".cg")
            else:
                xv = tl.load(x + token * x_stride + c, mask=c < dim, other=0.0, cache_modifier=".cg")
            single = tl.sum(a.to(tl.float32) * xv.to(tl.float32)[None, :], axis=1)
            tl.store(out + first.to(tl.int64) * h_stride, single, mask=live)
        elif ROWS > 1:
            if PDL:
                gdc_wait()
            m = tl.arange(0, ROWS)
            here = m < length
            tokens = tl.load(order + first + m, mask=here, other=0).to(tl.int64)
            total = tl.zeros((ROWS, 16), dtype=tl.float32)
            for step in range(0, BK // SUB):
                begin = column + step * SUB
                c = begin + tl.arange(0, SUB)
                own = live[:, None]
                keep = here[:, None]
                if not EVEN:
                    own = own & (c < dim)[None, :]
                    keep = keep & (c < dim)[None, :]
                a = tl.load(block_pointers(base, table, pool, units, adapter, rank, part, j, begin,
                                           live & (begin < dim), table_stride,
                                           dim, SUB, PAGE, ALIGNED), mask=own, other=0.0)
                xt = tl.load(x + tokens[:, None] * x_stride + c[None, :], mask=keep, other=0.0, cache_modifier=".cg")
                if UPCAST:
                    total += tl.dot(xt.to(tl.float32), tl.trans(a.to(tl.float32)), input_precision="ieee")
                else:
                    total = tl.dot(xt, tl.trans(a), total)
            tl.store(out[None, :] + (first + m).to(tl.int64)[:, None] * h_stride, total,
                     mask=here[:, None] & live[None, :])
    else:
        if PDL:
            gdc_wait()


@triton.jit(do_not_specialize=["table_stride", "splits"])
def expand_rows(y, h, order, tiles, ranks, scaling, table, pool, units, y_stride, h_stride, h_split_stride,
                table_stride,
                width0, width1, width2, splits,
                SLICES: tl.constexpr, RANK_PAD: tl.constexpr, SPLITS_PAD: tl.constexpr, ROWS: tl.constexpr,
                BN: tl.constexpr, SUB: tl.constexpr, PAGE: tl.constexpr, ALIGNED: tl.constexpr, EVEN: tl.constexpr,
                PDL: tl.constexpr, UPCAST: tl.constexpr):
    """y[order[p], o_s + n] += scaling * sum over j < rank of (sum over k of h[k, p, s * RANK_PAD + j]) * B_s[n, j].

    One program for each (row tile, BN outputs of one slice). A tile of one row takes vector products, 16 rank rows at a
    time; others the tensor cores in steps of SUB outputs, the next step's weights loaded ahead.
    """
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
        token = tl.load(order + first).to(tl.int64)
        if length == 1:
            j = tl.arange(0, 16)
            n = column + tl.arange(0, BN)
            keep = (j < rank)[:, None]
            if not EVEN:
                keep = keep & (n < width)[None, :]
            b = tl.load(block_pointers(base, table, pool, units, adapter, rank, part, j, column, j < rank,
                                       table_stride, width, BN,
                                       PAGE, ALIGNED), mask=keep, other=0.0)
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
                    parts = tl.load(parts_row + (j0 + j)[None, :], mask=(k < splits)[:, None], other=0.0,
                                    cache_modifier=".cg")
                    weight = tl.where(j0 + j < rank, tl.sum(parts, axis=0), 0.0) * scale
                    acc += tl.sum(b.to(tl.float32) * weight[:, None], axis=0)
                    after = j0 + 16 + j
                    keep = (after < rank)[:, None]
                    if not EVEN:
                        keep = keep & (n < width)[None, :]
                    b = tl.load(block_pointers(base, table, pool, units, adapter, rank, part, after, column,
                                               after < rank,
                                               table_stride, width, BN, PAGE, ALIGNED), mask=keep, other=0.0)
            if EVEN:
                tl.store(target, acc.to(y.dtype.element_ty))
            else:
                tl.store(target, acc.to(y.dtype.element_ty), mask=n < width)
        elif ROWS > 1:
            jj = tl.arange(0, RANK_PAD)
            live = jj < rank
            own = live[:, None]
            if not EVEN:
                own = own & (column + tl.arange(0, SUB) < width)[None, :]
            b_sub = tl.load(block_pointers(base, table, pool, units, adapter, rank, part, jj, column, live,
                                           table_stride, width, SUB,
                                           PAGE, ALIGNED), mask=own, other=0.0)
            m = tl.arange(0, ROWS)
            here = m < length
            tokens = tl.load(order + first + m, mask=here, other=0).to(tl.int64)
            if PDL:
                gdc_wait()
            left = summed_parts(h + part * RANK_PAD + jj, first, h_stride, h_split_stride, splits, here, live,
                                SPLITS_PAD,
                                ROWS, RANK_PAD) * scale
            if not UPCAST:
                left = left.to(pool.dtype.element_ty)
            n_sub = column + tl.arange(0, SUB)
            y_rows = y + tokens[:, None] * y_stride + y_first
            keep_sub = here[:, None]
            if not EVEN:
                keep_sub = keep_sub & (n_sub < width)[None, :]
            held_sub = tl.load(y_rows + n_sub[None, :], mask=keep_sub, other=0.0, cache_modifier=".cg")
            for step in range(0, BN // SUB):
                later = column + (step + 1) * SUB
                more = (later < column + BN) & (later < width)
                n_later = later + tl.arange(0, SUB)
                own = live[:, None] & more
                keep_later = here[:, None] & more
                if not EVEN:
                    own = own & (n_later < width)[None, :]
                    keep_later = keep_later & (n_later < width)[None, :]
                next_b = tl.load(block_pointers(base, table, pool, units, adapter, rank, part, jj, later, live & more,
                                                table_stride, width, SUB, PAGE, ALIGNED), mask=own, other=0.0)
                next_held = tl.load(y_rows + n_later[None, :], mask=keep_later, other=0.0, cache_modifier=".cg")
                if UPCAST:
                    product = tl.dot(left, b_sub.to(tl.float32), input_precision="ieee")
                else:
                    product = tl.dot(left, b_sub)
                result = (held_sub.to(tl.float32) + product).to(y.dtype.element_ty)
                n_sub = later - SUB + tl.arange(0, SUB)
                keep_sub = here[:, None]
                if not EVEN:
                    keep_sub = keep_sub & (n_sub < width)[None, :]
                tl.store(y_rows + n_sub[None, :], result, mask=keep_sub)
                b_sub = next_b
                held_sub = next_held
    else:
        if PDL:
            gdc_wait()


@triton.jit
def summed_parts(h_column, first, h_stride, h_split_stride, splits, here, live, SPLITS_PAD: tl.constexpr,
                 ROWS: tl.constexpr,
                 RANK_PAD: tl.constexpr):
    """sum over k < splits of h[k, first + m, column j], float32 [ROWS, RANK_PAD], zero beyond the rank.

    Columns beyond the rank are loaded and dropped: a mask that changes from column to column would split wide loads.
    """
    row = h_column[None, :] + (first + tl.arange(0, ROWS)).to(tl.int64)[:, None] * h_stride
    total = tl.zeros((ROWS, RANK_PAD), dtype=tl.float32)
    for k in tl.static_range(SPLITS_PAD):
        total += tl.load(row + k * h_split_stride, mask=(here & (k < splits))[:, None], other=0.0, cache_modifier=".cg")
    return tl.where(live[None, :], total, 0.0)
