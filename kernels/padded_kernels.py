"""Triton kernels of the padded algorithm: every slot on the grid, every rank the largest."""

# ruff: noqa: N803  (compile-time parameters are upper case)
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def padded_shrink(
    x,
    order,
    starts,
    counts,
    table,
    like,
    h,
    x_stride,
    h_slice_stride,
    h_stride,
    slots,
    tokens,
    rank,
    dim,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """h[s, t, j] += x A_s^T by float32 atomics; grid (splits * row tiles of ALL tokens * rank tiles, slices, slots +
    1)."""
    slot = tl.program_id(2)
    part = tl.program_id(1)
    pid = tl.program_id(0)
    split = pid % SPLITS
    row_tiles = tl.cdiv(tokens, ROWS)
    row_tile = (pid // SPLITS) % row_tiles
    rank_tile = pid // (SPLITS * row_tiles)
    count = 0
    if slot < slots:
        count = tl.load(counts + slot)
    if row_tile * ROWS < count:
        m = row_tile * ROWS + tl.arange(0, ROWS)
        here = m < count
        token = tl.load(order + tl.load(starts + slot) + m, mask=here, other=0).to(tl.int64)
        n = rank_tile * BN + tl.arange(0, BN)
        k = split * BK + tl.arange(0, BK)
        a_first = tl.load(table + part * slots + slot).to(tl.pointer_type(like.dtype.element_ty))
        acc = tl.zeros((ROWS, BN), dtype=tl.float32)
        for step in range(0, tl.cdiv(dim, BK * SPLITS)):
            c = k + step * BK * SPLITS
            xt = tl.load(x + token[:, None] * x_stride + c[None, :], mask=here[:, None] & (c < dim)[None, :], other=0.0)
            a = tl.load(
                a_first + n[None, :].to(tl.int64) * dim + c[:, None],
                mask=(n < rank)[None, :] & (c < dim)[:, None],
                other=0.0,
            )
            if UPCAST:
                acc += tl.dot(xt.to(tl.float32), a.to(tl.float32), input_precision="ieee")
            else:
                acc += tl.dot(xt, a)
        target = h + part * h_slice_stride + token[:, None] * h_stride + n[None, :]
        tl.atomic_add(target, acc, mask=here[:, None] & (n < rank)[None, :])


@triton.jit
def padded_expand(
    y,
    h,
    order,
    starts,
    counts,
    scaling,
    table,
    like,
    y_stride,
    h_slice_stride,
    h_stride,
    slots,
    tokens,
    rank,
    width0,
    width1,
    width2,
    widest,
    ROWS: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """y += scaling * h B_s; grid (row tiles of ALL tokens * tiles of the widest slice, slices, slots + 1)."""
    slot = tl.program_id(2)
    part = tl.program_id(1)
    pid = tl.program_id(0)
    column_tiles = tl.cdiv(widest, BN)
    row_tile = pid // column_tiles
    count = 0
    if slot < slots:
        count = tl.load(counts + slot)
    width = tl.where(part == 0, width0, tl.where(part == 1, width1, width2))
    y_first = tl.where(part == 0, 0, tl.where(part == 1, width0, width0 + width1))
    n = (pid % column_tiles) * BN + tl.arange(0, BN)
    if (row_tile * ROWS < count) & ((pid % column_tiles) * BN < width):
        m = row_tile * ROWS + tl.arange(0, ROWS)
        here = m < count
        token = tl.load(order + tl.load(starts + slot) + m, mask=here, other=0).to(tl.int64)
        scale = tl.load(scaling + slot)
        b_first = tl.load(table + part * slots + slot).to(tl.pointer_type(like.dtype.element_ty))
        acc = tl.zeros((ROWS, BN), dtype=tl.float32)
        for step in range(0, tl.cdiv(rank, BK)):
            j = step * BK + tl.arange(0, BK)
            v = tl.load(
                h + part * h_slice_stride + token[:, None] * h_stride + j[None, :],
                mask=here[:, None] & (j < rank)[None, :],
                other=0.0,
            )
            b = tl.load(
                b_first + j[:, None].to(tl.int64) * width + n[None, :],
                mask=(j < rank)[:, None] & (n < width)[None, :],
                other=0.0,
            )
            if UPCAST:
                acc += tl.dot(v, b.to(tl.float32), input_precision="ieee")
            else:
                acc += tl.dot(v.to(b.dtype), b)
        target = y + token[:, None] * y_stride + y_first + n[None, :]
        keep = here[:, None] & (n < width)[None, :]
        base = tl.load(target, mask=keep, other=0.0)
        tl.store(target, (base.to(tl.float32) + acc * scale).to(y.dtype.element_ty), mask=keep)
