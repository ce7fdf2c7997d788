"""Where a row of an adapter's matrix lies: through a pointer array or through a page table."""

# ruff: noqa: N803  (compile-time parameters are upper case)
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def row_starts(
    table,
    pool,
    units,
    adapter,
    rank,
    part,
    row,
    column,
    mask,
    table_stride,
    dim,
    PAGE: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """start[i] = &W[row[i], column] for the rank-major matrix W [rank, dim] of slice `part[i]` of one adapter.

    PAGE == 0: table is int64 [slices, slots] of addresses. Otherwise table is int32 [slots, pages], pool the page pool,
    and W begins at element rank * units[part] of the adapter's own linear space, which the pages hold in order.
    The caller reads at most up to the next page boundary from each start.
    """
    offset = row.to(tl.int64) * dim + column
    if PAGE == 0:
        base = tl.load(table + part * table_stride + adapter, mask=mask, other=0)
        start = base.to(tl.pointer_type(pool.dtype.element_ty)) + offset
    else:
        element = tl.load(units + part, mask=mask, other=0) * rank + offset
        page = tl.load(table + adapter.to(tl.int64) * table_stride + element // PAGE, mask=mask, other=0)
        start = pool + (page.to(tl.int64) * PAGE + element % PAGE)
    if ALIGNED:
        if len(start.shape) == 1:
            start = tl.multiple_of(start, [16])
        else:
            start = tl.multiple_of(start, [16, 16])
    return start


@triton.jit
def matrix_base(table, adapter, part, table_stride, PAGE: tl.constexpr):
    """Address of slice `part`'s matrix of one adapter; 0 for the paged layout, which has none."""
    if PAGE == 0:
        base = tl.load(table + part * table_stride + adapter)
    else:
        base = (adapter * 0).to(tl.int64)
    return base


@triton.jit
def block_pointers(
    base,
    table,
    pool,
    units,
    adapter,
    rank,
    part,
    row,
    column,
    mask,
    table_stride,
    dim,
    BLOCK: tl.constexpr,
    PAGE: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """&W[row[i], column + c] for c < BLOCK and one slice `part`; base from matrix_base."""
    offsets = tl.arange(0, BLOCK)
    if PAGE == 0:
        start = base.to(tl.pointer_type(pool.dtype.element_ty))
        if ALIGNED:
            start = tl.multiple_of(start, 16)
        pointers = start + (row[:, None] * dim + (column + offsets)[None, :])
    else:
        starts = row_starts(
            table, pool, units, adapter, rank, part + row * 0, row, column, mask, table_stride, dim, PAGE, ALIGNED
        )
        pointers = starts[:, None] + offsets[None, :]
    return pointers


@triton.jit
def slice_of_block(block, width0, width1, width2, SPAN: tl.constexpr, SLICES: tl.constexpr):
    """(slice, its width, its first output, block within it) of one of a tile's blocks of SPAN outputs."""
    part = block * 0
    width = width0
    first = block * 0
    if SLICES > 1:
        second = block >= tl.cdiv(width0, SPAN)
        part = tl.where(second, 1, 0)
        width = tl.where(second, width1, width0)
        first = tl.where(second, width0, 0)
        block = tl.where(second, block - tl.cdiv(width0, SPAN), block)
    if SLICES > 2:
        third = (part == 1) & (block >= tl.cdiv(width1, SPAN))
        part = tl.where(third, 2, part)
        width = tl.where(third, width2, width)
        first = tl.where(third, width0 + width1, first)
        block = tl.where(third, block - tl.cdiv(width1, SPAN), block)
    return part, width, first, block


@triton.jit
def blocks_of_slices(width0, width1, width2, SPAN: tl.constexpr, SLICES: tl.constexpr):
    """Blocks of SPAN outputs in one row tile, all slices together."""
    blocks = tl.cdiv(width0, SPAN)
    if SLICES > 1:
        blocks += tl.cdiv(width1, SPAN)
    if SLICES > 2:
        blocks += tl.cdiv(width2, SPAN)
    return blocks
