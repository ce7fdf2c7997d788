"""Triton kernels for few rows per adapter: the whole weight tile is in flight before anything is waited for."""
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .addressing import row_starts


@triton.jit(do_not_specialize=["table_stride", "bound"])
def shrink_rows(x, order, tiles, ranks, table, pool, units, h, x_stride, h_stride, h_split_stride, table_stride, dim, bound,
                SLICES: tl.constexpr, RANK_PAD: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr, NR: tl.constexpr,
                BK: tl.constexpr, VECTOR: tl.constexpr, PAGE: tl.constexpr, ALIGNED: tl.constexpr, EVEN: tl.constexpr,
                PDL: tl.constexpr, UPCAST: tl.constexpr):
    """h[k, p, s * RANK_PAD + j] = sum over columns of part k of x[order[p], c] * A_s[j, c], for j < rank of p's adapter.

    One item = (row tile, part k of the columns, NR of the slices' rank rows). Items are dealt to the programs in turn; used
    tiles come first in `tiles`, so a program stops at its first empty one. Up to VECTOR rows take vector products.
    """
    row_blocks: tl.constexpr = (SLICES * RANK_PAD + NR - 1) // NR
    per_tile: tl.constexpr = row_blocks * SPLITS
    if PDL:
        gdc_launch_dependents()
    item = tl.program_id(0)
    tile = item // per_tile
    length = tl.load(tiles + tile * 4 + 2, mask=tile < bound, other=0)
    while length > 0:
        adapter = tl.load(tiles + tile * 4)
        first = tl.load(tiles + tile * 4 + 1)
        rank = tl.load(ranks + adapter)
        within = item - tile * per_tile
        split = within // row_blocks
        row0 = (within - split * row_blocks) * NR
        if row0 % RANK_PAD < rank:
            rows = row0 + tl.arange(0, NR)
            part = rows // RANK_PAD
            j = rows % RANK_PAD
            live = (j < rank) & (part < SLICES)
            column = split * BK
            offsets = tl.arange(0, BK)
            starts = row_starts(table, pool, units, adapter, rank, part, j, column, live, table_stride, dim, PAGE, ALIGNED)
            inside = column + offsets < dim
            if EVEN:
                a = tl.load(starts[:, None] + offsets[None, :], mask=live[:, None], other=0.0)
            else:
                a = tl.load(starts[:, None] + offsets[None, :], mask=live[:, None] & inside[None, :], other=0.0)
            token0 = tl.load(order + first)
            m = tl.arange(0, ROWS)
            here = m < length
            tokens = tl.load(order + first + m, mask=here, other=0).to(tl.int64)
            if PDL:
                gdc_wait()
            out = h + split.to(tl.int64) * h_split_stride + rows
            if (ROWS <= VECTOR) or ((VECTOR > 0) and (length <= VECTOR)):
                for i in range(0, length):
                    source = x + token0.to(tl.int64) * x_stride + column + offsets
                    if EVEN:
                        xv = tl.load(source, cache_modifier=".cg")
                    else:
                        xv = tl.load(source, mask=inside, other=0.0, cache_modifier=".cg")
                    acc = tl.sum(a.to(tl.float32) * xv.to(tl.float32)[None, :], axis=1)
                    tl.store(out + (first + i).to(tl.int64) * h_stride, acc, mask=live)
                    token0 = tl.load(order + first + i + 1, mask=i + 1 < length, other=0)
            elif ROWS > VECTOR:
                source = x + tokens[:, None] * x_stride + (column + offsets)[None, :]
                if EVEN:
                    xt = tl.load(source, mask=here[:, None], other=0.0, cache_modifier=".cg")
                else:
                    xt = tl.load(source, mask=here[:, None] & inside[None, :], other=0.0, cache_modifier=".cg")
                if UPCAST:
                    product = tl.dot(xt.to(tl.float32), tl.trans(a.to(tl.float32)), input_precision="ieee")
                else:
                    product = tl.dot(xt, tl.trans(a))
                target = out[None, :] + (first + m).to(tl.int64)[:, None] * h_stride
                tl.store(target, product, mask=here[:, None] & live[None, :])
        item += tl.num_programs(0)
        tile = item // per_tile
        length = tl.load(tiles + tile * 4 + 2, mask=tile < bound, other=0)
    if PDL:
        gdc_wait()


@triton.jit(do_not_specialize=["table_stride", "bound"])
def expand_rows(y, h, order, tiles, ranks, scaling, table, pool, units, y_stride, h_stride, h_split_stride, table_stride,
                width0, width1, width2, bound,
                SLICES: tl.constexpr, RANK_PAD: tl.constexpr, SPLITS: tl.constexpr, SPLITS_PAD: tl.constexpr,
                ROWS: tl.constexpr, BN: tl.constexpr, VECTOR: tl.constexpr, PAGE: tl.constexpr, ALIGNED: tl.constexpr,
                EVEN: tl.constexpr, PDL: tl.constexpr, UPCAST: tl.constexpr):
    """y[order[p], o_s + n] += scaling * sum over j < rank of (sum over k of h[k, p, s * RANK_PAD + j]) * B_s[n, j].

    One item = (row tile, BN outputs of one slice), dealt to the programs in turn as in shrink_rows.
    """
    blocks0 = tl.cdiv(width0, BN)
    blocks1 = tl.cdiv(width1, BN)
    per_tile = blocks0
    if SLICES > 1:
        per_tile += blocks1
    if SLICES > 2:
        per_tile += tl.cdiv(width2, BN)
    if PDL:
        gdc_launch_dependents()
    item = tl.program_id(0)
    tile = item // per_tile
    length = tl.load(tiles + tile * 4 + 2, mask=tile < bound, other=0)
    while length > 0:
        adapter = tl.load(tiles + tile * 4)
        first = tl.load(tiles + tile * 4 + 1)
        rank = tl.load(ranks + adapter)
        scale = tl.load(scaling + adapter)
        block = item - tile * per_tile
        part = 0
        width = width0
        y_first = 0
        if SLICES > 1:
            second = block >= blocks0
            part = tl.where(second, 1, 0)
            width = tl.where(second, width1, width0)
            y_first = tl.where(second, width0, 0)
            block = tl.where(second, block - blocks0, block)
        if SLICES > 2:
            third = (part == 1) & (block >= blocks1)
            part = tl.where(third, 2, part)
            width = tl.where(third, width2, width)
            y_first = tl.where(third, width0 + width1, y_first)
            block = tl.where(third, block - blocks1, block)
        column = block * BN
        if rank > 0:
            j = tl.arange(0, RANK_PAD)
            live = j < rank
            offsets = tl.arange(0, BN)
            inside = column + offsets < width
            starts = row_starts(table, pool, units, adapter, rank, part + j * 0, j, column, live, table_stride, width, PAGE,
                                ALIGNED)
            if EVEN:
                b = tl.load(starts[:, None] + offsets[None, :], mask=live[:, None], other=0.0)
            else:
                b = tl.load(starts[:, None] + offsets[None, :], mask=live[:, None] & inside[None, :], other=0.0)
            token0 = tl.load(order + first)
            m = tl.arange(0, ROWS)
            here = m < length
            tokens = tl.load(order + first + m, mask=here, other=0).to(tl.int64)
            if PDL:
                gdc_wait()
            y_column = y_first + column + offsets
            h_column = h + part * RANK_PAD + j
            if (ROWS <= VECTOR) or ((VECTOR > 0) and (length <= VECTOR)):
                k = tl.arange(0, SPLITS_PAD)
                for i in range(0, length):
                    target = y + token0.to(tl.int64) * y_stride + y_column
                    if EVEN:
                        base = tl.load(target, cache_modifier=".cg")
                    else:
                        base = tl.load(target, mask=inside, other=0.0, cache_modifier=".cg")
                    row = h_column + (first + i).to(tl.int64) * h_stride
                    parts = tl.load(row[None, :] + k.to(tl.int64)[:, None] * h_split_stride,
                                    mask=(k < SPLITS)[:, None] & live[None, :], other=0.0, cache_modifier=".cg")
                    weight = tl.sum(parts, axis=0) * scale
                    acc = tl.sum(b.to(tl.float32) * weight[:, None], axis=0)
                    acc += base.to(tl.float32)
                    if EVEN:
                        tl.store(target, acc.to(y.dtype.element_ty))
                    else:
                        tl.store(target, acc.to(y.dtype.element_ty), mask=inside)
                    token0 = tl.load(order + first + i + 1, mask=i + 1 < length, other=0)
            elif ROWS > VECTOR:
                target = y + tokens[:, None] * y_stride + y_column[None, :]
                keep = here[:, None]
                if not EVEN:
                    keep = here[:, None] & inside[None, :]
                base = tl.load(target, mask=keep, other=0.0, cache_modifier=".cg")
                row = h_column[None, :] + (first + m).to(tl.int64)[:, None] * h_stride
                held = here[:, None] & live[None, :]
                weight = tl.zeros((ROWS, RANK_PAD), dtype=tl.float32)
                for k in tl.static_range(SPLITS):
                    weight += tl.load(row + k * h_split_stride, mask=held, other=0.0, cache_modifier=".cg")
                weight *= scale
                if UPCAST:
                    product = tl.dot(weight, b.to(tl.float32), input_precision="ieee")
                else:
                    product = tl.dot(weight.to(b.dtype), b)
                tl.store(target, (base.to(tl.float32) + product).to(y.dtype.element_ty), mask=keep)
        item += tl.num_programs(0)
        tile = item // per_tile
        length = tl.load(tiles + tile * 4 + 2, mask=tile < bound, other=0)
    if PDL:
        gdc_wait()
