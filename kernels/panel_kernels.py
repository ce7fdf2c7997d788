"""Triton kernels for tiles of 8 or 16 rows: tensor cores fed from registers as they were loaded.

Which element of a block lies in which thread is decided by the order of the axes below: of a loaded tensor the last
axis lies in one thread (or in the four of a row group), the first in neighbouring threads. The orders are those of the
tensor-core operands, with columns (or outputs) permuted in the same way on both sides of the product, so nothing passes
through shared memory between load and product, and every program keeps its whole panel of weights in flight before it
waits for the kernel launched before it. A grid covers a bounded number of row tiles; where a mapping uses more
(TURNS), a program takes every `lanes`-th one.
"""

# ruff: noqa: N803  (compile-time parameters are upper case)
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .addressing import blocks_of_slices, matrix_base, row_starts, slice_of_block


@triton.jit
def _row_pointers(
    base,
    table,
    pool,
    units,
    adapter,
    rank,
    part,
    row,
    column,
    live,
    table_stride,
    dim,
    PAGE: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """&W[row, column] for a block of rows of one slice `part`; base from matrix_base."""
    if PAGE == 0:
        start = base.to(tl.pointer_type(pool.dtype.element_ty))
        if ALIGNED:
            start = tl.multiple_of(start, 16)
        start = start + column + row * dim
    else:
        start = row_starts(
            table, pool, units, adapter, rank, part + row * 0, row, column, live, table_stride, dim, PAGE, ALIGNED
        )
    return start


@triton.jit(do_not_specialize=["table_stride", "splits", "lanes"])
def shrink_panel(
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
    lanes,
    SLICES: tl.constexpr,
    RANK_PAD: tl.constexpr,
    ROWS: tl.constexpr,
    NR: tl.constexpr,
    BK: tl.constexpr,
    WARPS: tl.constexpr,
    TURNS: tl.constexpr,
    PAGE: tl.constexpr,
    ALIGNED: tl.constexpr,
    EVEN: tl.constexpr,
    PDL: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """h[k, p, s * RANK_PAD + j] = sum over columns of part k of x[order[p], c] * A_s[j, c], for j < rank of p's
    adapter.

    One program for each (lane of row tiles, NR rank rows of one slice, part k of BK columns). Its columns are divided
    over the warps, 32 at a time, as one batch of products [NR, columns] x [columns, ROWS] that is summed at the end.
    """
    if PDL:
        gdc_launch_dependents()
    blocks: tl.constexpr = SLICES * RANK_PAD // NR
    chunks: tl.constexpr = BK // 32
    each: tl.constexpr = chunks // WARPS
    pid = tl.program_id(0)
    lane = pid // (blocks * splits)
    within = pid - lane * (blocks * splits)
    split = within // blocks
    row0 = (within - split * blocks) * NR
    part = row0 // RANK_PAD
    column = split * BK
    j = row0 % RANK_PAD + tl.arange(0, 8)[:, None] + (tl.arange(0, NR // 8) * 8)[None, :]
    m = tl.arange(0, 8)[:, None] + (tl.arange(0, ROWS // 8) * 8)[None, :]
    spread = (tl.arange(0, chunks) * 32)[None, :, None, None] + tl.arange(0, 32)[None, None, None, :]
    used = tl.load(tiles + 3)
    tile = lane
    last = lane + 1  # the first tile's data are not to wait for the number of tiles
    while tile < last:
        adapter = tl.load(tiles + tile * 4)
        first = tl.load(tiles + tile * 4 + 1)
        length = tl.load(tiles + tile * 4 + 2)
        rank = tl.load(ranks + adapter)
        base = matrix_base(table, adapter, part, table_stride, PAGE)
        if (length > 0) & (row0 % RANK_PAD < rank):
            live = j < rank
            here = m < length
            token = tl.load(order + first + m, mask=here, other=0).to(tl.int64)
            own = live[:, None, :, None]
            keep = here[:, None, :, None]
            if not EVEN:
                own = own & (column + spread < dim)
                keep = keep & (column + spread < dim)
            rows = _row_pointers(
                base, table, pool, units, adapter, rank, part, j, column, live, table_stride, dim, PAGE, ALIGNED
            )
            a = tl.load(rows[:, None, :, None] + spread, mask=own, other=0.0)
            if PDL:
                gdc_wait()
            xt = tl.load(
                (x + column + token * x_stride)[:, None, :, None] + spread, mask=keep, other=0.0, cache_modifier=".cg"
            )
            # 32 columns of a chunk, 8 in each of 4 threads: (thread, step of 16, half of it, one of a pair).
            left = tl.reshape(a, (8, each, WARPS, NR // 8, 4, 2, 2, 2))
            left = tl.reshape(tl.permute(left, (2, 3, 0, 1, 5, 6, 4, 7)), (WARPS, NR, each * 32))
            right = tl.reshape(xt, (8, each, WARPS, ROWS // 8, 4, 2, 2, 2))
            right = tl.reshape(tl.permute(right, (2, 1, 5, 6, 4, 7, 3, 0)), (WARPS, each * 32, ROWS))
            if UPCAST:
                total = tl.dot(left.to(tl.float32), right.to(tl.float32), input_precision="ieee")
            else:
                total = tl.dot(left, right)
            i = tl.arange(0, NR)
            n = tl.arange(0, ROWS)
            target = h + split.to(tl.int64) * h_split_stride + (row0 + i)[:, None]
            target += (first + n).to(tl.int64)[None, :] * h_stride
            tl.store(target, tl.sum(total, axis=0), mask=(n < length)[None, :] & (row0 % RANK_PAD + i < rank)[:, None])
        if TURNS:
            last = used
            tile += lanes
        else:
            tile = last
    if PDL and pid == 0:  # one waiting program is enough: a grid ends after all of its programs
        gdc_wait()


@triton.jit(do_not_specialize=["table_stride", "splits", "lanes"])
def expand_panel(
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
    lanes,
    SLICES: tl.constexpr,
    RANK_PAD: tl.constexpr,
    SPLITS_PAD: tl.constexpr,
    ROWS: tl.constexpr,
    BN: tl.constexpr,
    WARPS: tl.constexpr,
    TURNS: tl.constexpr,
    PAGE: tl.constexpr,
    ALIGNED: tl.constexpr,
    EVEN: tl.constexpr,
    PDL: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """y[order[p], o_s + n] += scaling * sum over j < rank of (sum over k of h[k, p, s * RANK_PAD + j]) * B_s[n, j].

    One program for each (lane of row tiles, BN outputs of one slice), as products [BN, RANK_PAD] x [RANK_PAD, ROWS].
    """
    if PDL:
        gdc_launch_dependents()
    chunks: tl.constexpr = BN // 64
    each: tl.constexpr = chunks // WARPS
    per_tile = blocks_of_slices(width0, width1, width2, BN, SLICES)
    pid = tl.program_id(0)
    lane = pid // per_tile
    part, width, y_first, block = slice_of_block(pid - lane * per_tile, width0, width1, width2, BN, SLICES)
    column = block * BN
    # Rank row 16 a + 4 t + q is row 16 a + 8 (q / 2) + 2 t + q % 2 of the product; row tile row 8 a + 2 t + q likewise.
    q = tl.arange(0, RANK_PAD // 4)
    j = (tl.arange(0, 4) * 4)[:, None] + (q // 4 * 16 + q % 4)[None, :]
    e = tl.arange(0, ROWS // 4)
    m = (tl.arange(0, 4) * 2)[:, None] + (e // 2 * 8 + e % 2)[None, :]
    spread = (tl.arange(0, 8) * 8)[None, :, None, None, None] + tl.arange(0, 8)[None, None, None, None, :]
    spread += (tl.arange(0, chunks) * 64)[None, None, :, None, None]
    used = tl.load(tiles + 3)
    tile = lane
    last = lane + 1  # the first tile's data are not to wait for the number of tiles
    while tile < last:
        adapter = tl.load(tiles + tile * 4)
        first = tl.load(tiles + tile * 4 + 1)
        length = tl.load(tiles + tile * 4 + 2)
        rank = tl.load(ranks + adapter)
        scale = tl.load(scaling + adapter)
        base = matrix_base(table, adapter, part, table_stride, PAGE)
        if (length > 0) & (rank > 0):
            live = j < rank
            here = m < length
            token = tl.load(order + first + m, mask=here, other=0).to(tl.int64)
            own = live[:, None, None, :, None]
            keep = here[:, None, None, :, None]
            if not EVEN:
                own = own & (column + spread < width)
                keep = keep & (column + spread < width)
            if PAGE == 0 and RANK_PAD > 16:  # offsets: more rows' addresses than fit the registers
                start = _row_pointers(
                    base, table, pool, units, adapter, rank, part, 0, column, live, table_stride, width, PAGE, ALIGNED
                )
                weights = start + ((j * width)[:, None, None, :, None] + spread)
            else:
                rows = _row_pointers(
                    base, table, pool, units, adapter, rank, part, j, column, live, table_stride, width, PAGE, ALIGNED
                )
                weights = rows[:, None, None, :, None] + spread
            b = tl.load(weights, mask=own, other=0.0)
            target = (y + y_first + column + token * y_stride)[:, None, None, :, None] + spread
            if PDL:
                gdc_wait()
            held = tl.load(target, mask=keep, other=0.0, cache_modifier=".cg")
            right = (
                _inner(
                    h + part * RANK_PAD,
                    first,
                    length,
                    rank,
                    h_stride,
                    h_split_stride,
                    splits,
                    SPLITS_PAD,
                    ROWS,
                    RANK_PAD,
                    WARPS,
                )
                * scale
            )
            if not UPCAST:
                right = right.to(pool.dtype.element_ty)
            right = tl.reshape(right, (ROWS, RANK_PAD // 16, 4, 2, 2))
            right = tl.reshape(tl.permute(right, (1, 3, 2, 4, 0)), (1, RANK_PAD, ROWS))
            right = tl.broadcast_to(right, (WARPS, RANK_PAD, ROWS))
            # 8 outputs in a thread: (row of 16 in the product, its other half).
            left = tl.reshape(b, (4, 8, each, WARPS, RANK_PAD // 16, 2, 2, 4, 2))
            left = tl.reshape(tl.permute(left, (3, 2, 7, 8, 1, 4, 5, 0, 6)), (WARPS, each * 64, RANK_PAD))
            if UPCAST:
                product = tl.dot(left.to(tl.float32), right, input_precision="ieee")
            else:
                product = tl.dot(left, right)
            delta = tl.reshape(product, (WARPS, each, 4, 2, 8, ROWS // 8, 4, 2))
            delta = tl.reshape(tl.permute(delta, (6, 4, 1, 0, 5, 7, 2, 3)), (4, 8, chunks, ROWS // 4, 8))
            tl.store(target, (held.to(tl.float32) + delta).to(y.dtype.element_ty), mask=keep)
        if TURNS:
            last = used
            tile += lanes
        else:
            tile = last
    if PDL and pid == 0:
        gdc_wait()


@triton.jit
def _inner(
    h,
    first,
    length,
    rank,
    h_stride,
    h_split_stride,
    splits,
    SPLITS_PAD: tl.constexpr,
    ROWS: tl.constexpr,
    RANK_PAD: tl.constexpr,
    WARPS: tl.constexpr,
):
    """sum over k < splits of h[k, first + n, c], float32 [ROWS, RANK_PAD], zero beyond the rank.

    Parts are divided over the threads that rows and columns leave idle, so that each is read once a program.
    """
    aside: tl.constexpr = max(1, min(SPLITS_PAD, WARPS * 128 // (ROWS * RANK_PAD)))
    k = tl.arange(0, aside)[:, None, None]
    n = tl.arange(0, ROWS)[None, :, None]
    c = tl.arange(0, RANK_PAD)
    source = h + c[None, None, :] + (first + n).to(tl.int64) * h_stride + k.to(tl.int64) * h_split_stride
    total = tl.zeros((aside, ROWS, RANK_PAD), dtype=tl.float32)
    for s in tl.static_range(SPLITS_PAD // aside):
        total += tl.load(
            source + s * aside * h_split_stride,
            mask=(n < length) & (s * aside + k < splits),
            other=0.0,
            cache_modifier=".cg",
        )
    return tl.where(c[None, :] < rank, tl.sum(total, axis=0), 0.0)
