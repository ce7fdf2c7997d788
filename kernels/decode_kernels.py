"""Triton kernels for few rows per adapter: persistent programs that load their next weights before they use the last.

Weights and tables are read before the kernel waits for its predecessor, what the predecessor wrote only after.
"""
# ruff: noqa: N803, N806  (compile-time parameters are upper case)
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .addressing import row_starts


@triton.jit
def _shrink_fetch(item, step, order, tiles, ranks, table, pool, units, table_stride, dim, bound, per_tile, row_blocks, steps,
                  SLICES: tl.constexpr, RANK_PAD: tl.constexpr, ROWS: tl.constexpr, NR: tl.constexpr, BK: tl.constexpr,
                  PAGE: tl.constexpr, ALIGNED: tl.constexpr, EVEN: tl.constexpr):
    """Weights of one (item, step) and the tokens they meet; length 0 and zero weights beyond the last item."""
    tile = item // per_tile
    used = tile < bound
    adapter = tl.load(tiles + tile * 4, mask=used, other=0)
    first = tl.load(tiles + tile * 4 + 1, mask=used, other=0)
    length = tl.load(tiles + tile * 4 + 2, mask=used, other=0)
    rank = tl.load(ranks + adapter, mask=length > 0, other=0)
    within = item - tile * per_tile
    split = within // row_blocks
    rows = (within - split * row_blocks) * NR + tl.arange(0, NR)
    part = rows // RANK_PAD
    j = rows % RANK_PAD
    live = (j < rank) & (part < SLICES)
    column = (split * steps + step) * BK
    offsets = tl.arange(0, BK)
    if PAGE > 0:
        starts = row_starts(table, pool, units, adapter, rank, part, j, column, live & (column < dim), table_stride, dim, PAGE,
                            ALIGNED)
    else:
        starts = row_starts(table, pool, units, adapter, rank, part, j, column, live, table_stride, dim, PAGE, ALIGNED)
    keep = live[:, None]
    if not EVEN:
        keep = keep & (column + offsets < dim)[None, :]
    a = tl.load(starts[:, None] + offsets[None, :], mask=keep, other=0.0)
    m = tl.arange(0, ROWS)
    tokens = tl.load(order + first + m, mask=m < length, other=0)
    token0 = tl.load(order + first, mask=length > 0, other=0)
    return length, first, rank, a, tokens, token0


@triton.jit
def _shrink_one(x, out, a, total, token, first, x_stride, h_stride, columns, dim, live, last, EVEN: tl.constexpr):
    """total += A x for a tile of one row, stored and zeroed after an item's last block."""
    source = x + token.to(tl.int64) * x_stride + columns
    if EVEN:
        xv = tl.load(source, cache_modifier=".cg")
    else:
        xv = tl.load(source, mask=columns < dim, other=0.0, cache_modifier=".cg")
    total += tl.sum(a.to(tl.float32) * xv.to(tl.float32)[None, :], axis=1)
    tl.store(out + first.to(tl.int64) * h_stride, total, mask=live & last)
    return tl.where(last, 0.0, total)


@triton.jit
def _shrink_many(x, out, a, total, tokens, length, first, x_stride, h_stride, columns, dim, live, last, ROWS: tl.constexpr,
                 EVEN: tl.constexpr, UPCAST: tl.constexpr):
    """total += x A^T for a tile of several rows, stored and zeroed after an item's last block."""
    m = tl.arange(0, ROWS)
    here = m < length
    keep = here[:, None]
    if not EVEN:
        keep = keep & (columns < dim)[None, :]
    xt = tl.load(x + tokens.to(tl.int64)[:, None] * x_stride + columns[None, :], mask=keep, other=0.0, cache_modifier=".cg")
    if UPCAST:
        total += tl.dot(xt.to(tl.float32), tl.trans(a.to(tl.float32)), input_precision="ieee")
    else:
        total = tl.dot(xt, tl.trans(a), total)
    tl.store(out[None, :] + (first + m).to(tl.int64)[:, None] * h_stride, total, mask=here[:, None] & (live & last)[None, :])
    return tl.where(last, 0.0, total)


@triton.jit(do_not_specialize=["table_stride", "bound", "steps", "splits"])
def shrink_rows(x, order, tiles, ranks, table, pool, units, h, x_stride, h_stride, h_split_stride, table_stride, dim, bound,
                steps, splits,
                SLICES: tl.constexpr, RANK_PAD: tl.constexpr, ROWS: tl.constexpr, NR: tl.constexpr, BK: tl.constexpr,
                VECTOR: tl.constexpr, AHEAD: tl.constexpr, PAGE: tl.constexpr, ALIGNED: tl.constexpr, EVEN: tl.constexpr,
                PDL: tl.constexpr, UPCAST: tl.constexpr):
    """h[k, p, s * RANK_PAD + j] = sum over columns of part k of x[order[p], c] * A_s[j, c], for j < rank of p's adapter.

    One item = (row tile, part k: `steps` blocks of BK columns, NR of the slices' rank rows). Items are dealt to the programs
    in turn; used tiles come first in `tiles`, so a program stops at its first empty one. VECTOR: a tile of one row takes
    vector products instead of the tensor cores.
    """
    row_blocks: tl.constexpr = (SLICES * RANK_PAD + NR - 1) // NR
    per_tile = row_blocks * splits
    if PDL:
        gdc_launch_dependents()
    item = tl.program_id(0)
    step = item * 0
    offsets = tl.arange(0, BK)
    single = tl.zeros((NR,), dtype=tl.float32)
    several = tl.zeros((ROWS, NR), dtype=tl.float32)
    length, first, rank, a, tokens, token0 = _shrink_fetch(
        item, step, order, tiles, ranks, table, pool, units, table_stride, dim, bound, per_tile, row_blocks, steps,
        SLICES, RANK_PAD, ROWS, NR, BK, PAGE, ALIGNED, EVEN)
    if PDL:
        gdc_wait()
    while length > 0:
        last = step + 1 == steps
        next_item = tl.where(last, item + tl.num_programs(0), item)
        next_step = tl.where(last, 0, step + 1)
        if AHEAD:
            next_length, next_first, next_rank, next_a, next_tokens, next_token0 = _shrink_fetch(
                next_item, next_step, order, tiles, ranks, table, pool, units, table_stride, dim, bound, per_tile, row_blocks,
                steps, SLICES, RANK_PAD, ROWS, NR, BK, PAGE, ALIGNED, EVEN)
        within = item % per_tile
        split = within // row_blocks
        row0 = (within - split * row_blocks) * NR
        columns = (split * steps + step) * BK + offsets
        rows = row0 + tl.arange(0, NR)
        live = (rows % RANK_PAD < rank) & (rows < SLICES * RANK_PAD)
        out = h + split.to(tl.int64) * h_split_stride + rows
        if row0 % RANK_PAD < rank:
            if ROWS == 1:
                single = _shrink_one(x, out, a, single, token0, first, x_stride, h_stride, columns, dim, live, last, EVEN)
            else:
                if VECTOR:
                    if length == 1:
                        single = _shrink_one(x, out, a, single, token0, first, x_stride, h_stride, columns, dim, live, last,
                                             EVEN)
                    else:
                        several = _shrink_many(x, out, a, several, tokens, length, first, x_stride, h_stride, columns, dim,
                                               live, last, ROWS, EVEN, UPCAST)
                else:
                    several = _shrink_many(x, out, a, several, tokens, length, first, x_stride, h_stride, columns, dim, live,
                                           last, ROWS, EVEN, UPCAST)
        if not AHEAD:
            next_length, next_first, next_rank, next_a, next_tokens, next_token0 = _shrink_fetch(
                next_item, next_step, order, tiles, ranks, table, pool, units, table_stride, dim, bound, per_tile, row_blocks,
                steps, SLICES, RANK_PAD, ROWS, NR, BK, PAGE, ALIGNED, EVEN)
        item = next_item
        step = next_step
        length = next_length
        first = next_first
        rank = next_rank
        a = next_a
        tokens = next_tokens
        token0 = next_token0


@triton.jit
def _expand_fetch(item, order, tiles, ranks, scaling, table, pool, units, table_stride, width0, width1, width2, bound, per_tile,
                  SLICES: tl.constexpr, RANK_PAD: tl.constexpr, ROWS: tl.constexpr, BN: tl.constexpr, PAGE: tl.constexpr,
                  ALIGNED: tl.constexpr, EVEN: tl.constexpr):
    """Weights of one item, where its outputs lie, and the tokens they belong to; length 0 beyond the last item."""
    tile = item // per_tile
    used = tile < bound
    adapter = tl.load(tiles + tile * 4, mask=used, other=0)
    first = tl.load(tiles + tile * 4 + 1, mask=used, other=0)
    length = tl.load(tiles + tile * 4 + 2, mask=used, other=0)
    rank = tl.load(ranks + adapter, mask=length > 0, other=0)
    scale = tl.load(scaling + adapter, mask=length > 0, other=0.0)
    block = item - tile * per_tile
    part = item * 0
    width = width0
    y_first = item * 0
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
    j = tl.arange(0, RANK_PAD)
    live = j < rank
    offsets = tl.arange(0, BN)
    starts = row_starts(table, pool, units, adapter, rank, part + j * 0, j, column, live, table_stride, width, PAGE, ALIGNED)
    keep = live[:, None]
    if not EVEN:
        keep = keep & (column + offsets < width)[None, :]
    b = tl.load(starts[:, None] + offsets[None, :], mask=keep, other=0.0)
    m = tl.arange(0, ROWS)
    tokens = tl.load(order + first + m, mask=m < length, other=0)
    token0 = tl.load(order + first, mask=length > 0, other=0)
    return length, first, rank, scale, part, y_first + column, width - column, b, tokens, token0


@triton.jit
def summed_parts(h_column, first, h_stride, h_split_stride, splits, here, live, SPLITS_PAD: tl.constexpr, ROWS: tl.constexpr,
                 RANK_PAD: tl.constexpr):
    """sum over k < splits of h[k, first + m, column j], float32 [ROWS, RANK_PAD], zero beyond the rank.

    Columns beyond the rank are loaded and dropped: a mask that changes from column to column would split wide loads.
    """
    row = h_column[None, :] + (first + tl.arange(0, ROWS)).to(tl.int64)[:, None] * h_stride
    total = tl.zeros((ROWS, RANK_PAD), dtype=tl.float32)
    for k in tl.static_range(SPLITS_PAD):
        total += tl.load(row + k * h_split_stride, mask=(here & (k < splits))[:, None], other=0.0, cache_modifier=".cg")
    return tl.where(live[None, :], total, 0.0)


@triton.jit
def _expand_one(y, h_column, b, scale, token, first, y_stride, h_stride, h_split_stride, y_column, left, live, splits,
                SPLITS_PAD: tl.constexpr, BN: tl.constexpr, EVEN: tl.constexpr):
    """One row of y += scale * (sum of h's parts) B."""
    offsets = tl.arange(0, BN)
    target = y + token.to(tl.int64) * y_stride + y_column + offsets
    if EVEN:
        base = tl.load(target, cache_modifier=".cg")
    else:
        base = tl.load(target, mask=offsets < left, other=0.0, cache_modifier=".cg")
    k = tl.arange(0, SPLITS_PAD)
    row = h_column + first.to(tl.int64) * h_stride
    parts = tl.load(row[None, :] + k.to(tl.int64)[:, None] * h_split_stride, mask=(k < splits)[:, None], other=0.0,
                    cache_modifier=".cg")
    weight = tl.where(live, tl.sum(parts, axis=0), 0.0) * scale
    acc = (tl.sum(b.to(tl.float32) * weight[:, None], axis=0) + base.to(tl.float32)).to(y.dtype.element_ty)
    if EVEN:
        tl.store(target, acc)
    else:
        tl.store(target, acc, mask=offsets < left)


@triton.jit
def _expand_many(y, h_column, b, scale, tokens, length, first, y_stride, h_stride, h_split_stride, y_column, left, live,
                 splits, SPLITS_PAD: tl.constexpr, ROWS: tl.constexpr, RANK_PAD: tl.constexpr, BN: tl.constexpr, EVEN: tl.constexpr,
                 UPCAST: tl.constexpr):
    """Several rows of y += scale * (sum of h's parts) B."""
    offsets = tl.arange(0, BN)
    here = tl.arange(0, ROWS) < length
    keep = here[:, None]
    if not EVEN:
        keep = keep & (offsets < left)[None, :]
    target = y + tokens.to(tl.int64)[:, None] * y_stride + (y_column + offsets)[None, :]
    base = tl.load(target, mask=keep, other=0.0, cache_modifier=".cg")
    weight = summed_parts(h_column, first, h_stride, h_split_stride, splits, here, live, SPLITS_PAD, ROWS, RANK_PAD) * scale
    if UPCAST:
        product = tl.dot(weight, b.to(tl.float32), input_precision="ieee")
    else:
        product = tl.dot(weight.to(b.dtype), b)
    tl.store(target, (base.to(tl.float32) + product).to(y.dtype.element_ty), mask=keep)


@triton.jit(do_not_specialize=["table_stride", "bound", "splits"])
def expand_rows(y, h, order, tiles, ranks, scaling, table, pool, units, y_stride, h_stride, h_split_stride, table_stride,
                width0, width1, width2, bound, splits,
                SLICES: tl.constexpr, RANK_PAD: tl.constexpr, SPLITS_PAD: tl.constexpr, ROWS: tl.constexpr,
                BN: tl.constexpr, VECTOR: tl.constexpr, AHEAD: tl.constexpr, PAGE: tl.constexpr, ALIGNED: tl.constexpr,
                EVEN: tl.constexpr, PDL: tl.constexpr, UPCAST: tl.constexpr):
    """y[order[p], o_s + n] += scaling * sum over j < rank of (sum over k of h[k, p, s * RANK_PAD + j]) * B_s[n, j].

    One item = (row tile, BN outputs of one slice), dealt to the programs in turn as in shrink_rows.
    """
    per_tile = tl.cdiv(width0, BN)
    if SLICES > 1:
        per_tile += tl.cdiv(width1, BN)
    if SLICES > 2:
        per_tile += tl.cdiv(width2, BN)
    if PDL:
        gdc_launch_dependents()
    item = tl.program_id(0)
    j = tl.arange(0, RANK_PAD)
    length, first, rank, scale, part, y_column, left, b, tokens, token0 = _expand_fetch(
        item, order, tiles, ranks, scaling, table, pool, units, table_stride, width0, width1, width2, bound, per_tile,
        SLICES, RANK_PAD, ROWS, BN, PAGE, ALIGNED, EVEN)
    if PDL:
        gdc_wait()
    while length > 0:
        item += tl.num_programs(0)
        if AHEAD:
            (next_length, next_first, next_rank, next_scale, next_part, next_column, next_left, next_b, next_tokens,
             next_token0) = _expand_fetch(item, order, tiles, ranks, scaling, table, pool, units, table_stride, width0, width1,
                                          width2, bound, per_tile, SLICES, RANK_PAD, ROWS, BN, PAGE, ALIGNED, EVEN)
        live = j < rank
        h_column = h + part * RANK_PAD + j
        if rank > 0:
            if ROWS == 1:
                _expand_one(y, h_column, b, scale, token0, first, y_stride, h_stride, h_split_stride, y_column, left, live,
                            splits, SPLITS_PAD, BN, EVEN)
            else:
                if VECTOR:
                    if length == 1:
                        _expand_one(y, h_column, b, scale, token0, first, y_stride, h_stride, h_split_stride, y_column, left,
                                    live, splits, SPLITS_PAD, BN, EVEN)
                    else:
                        _expand_many(y, h_column, b, scale, tokens, length, first, y_stride, h_stride, h_split_stride,
                                     y_column, left, live, splits, SPLITS_PAD, ROWS, RANK_PAD, BN, EVEN, UPCAST)
                else:
                    _expand_many(y, h_column, b, scale, tokens, length, first, y_stride, h_stride, h_split_stride, y_column,
                                 left, live, splits, SPLITS_PAD, ROWS, RANK_PAD, BN, EVEN, UPCAST)
        if not AHEAD:
            (next_length, next_first, next_rank, next_scale, next_part, next_column, next_left, next_b, next_tokens,
             next_token0) = _expand_fetch(item, order, tiles, ranks, scaling, table, pool, units, table_stride, width0, width1,
                                          width2, bound, per_tile, SLICES, RANK_PAD, ROWS, BN, PAGE, ALIGNED, EVEN)
        length = next_length
        first = next_first
        rank = next_rank
        scale = next_scale
        part = next_part
        y_column = next_column
        left = next_left
        b = next_b
        tokens = next_tokens
        token0 = next_token0
