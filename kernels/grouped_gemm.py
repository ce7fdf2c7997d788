"""Grouped GEMM: a ragged list of matrix products in one launch."""

# ruff: noqa: N803  (compile-time parameters are upper case)
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import triton
import triton.language as tl

from .errors import require
from .launch import INTERPRET, device_index, multiprocessors, options


@triton.jit
def grouped_products(  # type: ignore[no-untyped-def]
    problems,
    work,
    like,
    total,
    ROWS: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    ADD: tl.constexpr,
    ALIGNED: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """A persistent program takes every num_programs-th (problem, row tile, column tile) of the work list."""
    element = like.dtype.element_ty
    for item in range(tl.program_id(0), total, tl.num_programs(0)):
        problem = problems + tl.load(work + item * 3) * 8
        m = tl.load(work + item * 3 + 1) + tl.arange(0, ROWS)
        n = tl.load(work + item * 3 + 2) + tl.arange(0, BN)
        x = tl.load(problem).to(tl.pointer_type(element))
        w = tl.load(problem + 1).to(tl.pointer_type(element))
        out = tl.load(problem + 2).to(tl.pointer_type(element))
        if ALIGNED:
            x = tl.multiple_of(x, 16)
            w = tl.multiple_of(w, 16)
            out = tl.multiple_of(out, 16)
        rows = tl.load(problem + 3)
        columns = tl.load(problem + 4)
        inner = tl.load(problem + 5)
        x_stride = tl.load(problem + 6)
        out_stride = tl.load(problem + 7)
        if ALIGNED:
            columns = tl.multiple_of(columns, 8)
            inner = tl.multiple_of(inner, 8)
            x_stride = tl.multiple_of(x_stride, 8)
            out_stride = tl.multiple_of(out_stride, 8)
        acc = tl.zeros((ROWS, BN), dtype=tl.float32)
        for k0 in range(0, inner, BK):
            k = k0 + tl.arange(0, BK)
            xt = tl.load(
                x + m[:, None] * x_stride + k[None, :], mask=(m < rows)[:, None] & (k < inner)[None, :], other=0.0
            )
            if TRANSPOSED:
                held = (n < columns)[:, None] & (k < inner)[None, :]
                wt = tl.trans(tl.load(w + n[:, None] * inner + k[None, :], mask=held, other=0.0))
            else:
                held = (k < inner)[:, None] & (n < columns)[None, :]
                wt = tl.load(w + k[:, None] * columns + n[None, :], mask=held, other=0.0)
            if UPCAST:
                acc += tl.dot(xt.to(tl.float32), wt.to(tl.float32), input_precision="ieee")
            else:
                acc = tl.dot(xt, wt, acc)
        target = out + m[:, None] * out_stride + n[None, :]
        keep = (m < rows)[:, None] & (n < columns)[None, :]
        if ADD:
            acc += tl.load(target, mask=keep, other=0.0).to(tl.float32)
        tl.store(target, acc.to(element), mask=keep)


@dataclass(frozen=True)
class ProblemList:
    """A prepared list of products; reusable under a CUDA graph as long as the tensors stay where they are.

    problems: int64 [n, 8] (x, w, out addresses, rows, columns, inner, x row stride, out row stride). work: int32
    [tiles, 3].
    """

    problems: torch.Tensor
    work: torch.Tensor
    like: torch.Tensor
    transposed: bool
    aligned: bool
    rows: int
    block: int
    owners: tuple[torch.Tensor, ...] = field(repr=False)


def problem_list(
    x: Sequence[torch.Tensor],
    w: Sequence[torch.Tensor],
    out: Sequence[torch.Tensor],
    transposed: bool = True,
    rows: int = 16,
    block: int = 64,
) -> ProblemList:
    """Check and list the products out[i] = x[i] w[i]^T (transposed) or x[i] w[i], ragged in all three dimensions.

    x[i]: [m, k]; w[i]: contiguous [n, k] when transposed, else [k, n]; out[i]: [m, n]. One dtype, one device; m may be
    0.
    """
    require(len(x) == len(w) == len(out) > 0, "x, w, out: the same number of problems, at least one")
    like, table, work = x[0], [], []
    for i, (left, right, result) in enumerate(zip(x, w, out, strict=True)):
        inner, columns = (right.shape[1], right.shape[0]) if transposed else (right.shape[0], right.shape[1])
        require(left.dim() == right.dim() == result.dim() == 2, f"problem {i}: matrices needed")
        require(left.shape[1] == inner, f"problem {i}: x has {left.shape[1]} columns, w needs {inner}")
        require(
            tuple(result.shape) == (left.shape[0], columns),
            f"problem {i}: out is {tuple(result.shape)}, ({left.shape[0]}, {columns}) needed",
        )
        require(
            all(t.dtype == like.dtype for t in (left, right, result)), f"problem {i}: one dtype for x, w and out needed"
        )
        require(all(t.device == like.device for t in (left, right, result)), f"problem {i}: one device needed")
        require(right.is_contiguous(), f"problem {i}: w must be contiguous")
        require(
            all(t.stride(1) == 1 or t.shape[1] == 1 for t in (left, result)), f"problem {i}: columns must be contiguous"
        )
        table.append(
            [
                left.data_ptr(),
                right.data_ptr(),
                result.data_ptr(),
                left.shape[0],
                columns,
                inner,
                left.stride(0),
                result.stride(0),
            ]
        )
        work += [[i, m, n] for m in range(0, left.shape[0], rows) for n in range(0, columns, block)]
    aligned = all(row[c] % 16 == 0 for row in table for c in range(3)) and all(
        v % 8 == 0 for row in table for v in row[4:]
    )
    return ProblemList(
        torch.tensor(table, dtype=torch.int64, device=like.device),
        torch.tensor(work, dtype=torch.int32, device=like.device).view(-1, 3),
        like,
        transposed,
        aligned,
        rows,
        block,
        (*x, *w, *out),
    )


def grouped_gemm(problems: ProblemList, add: bool = False) -> None:
    """out_i[m, n] = (out_i[m, n] if add else 0) + sum over k of x_i[m, k] * w_i[n, k] for every problem i, in ONE
    launch.

    The problems are ragged in rows, columns and inner size, so segments of any rank and several projections (q, k and
    v of all adapters) share a launch. A transformer layer still needs at least four groups, because each starts from an
    activation that only exists after the group before it: qkv from the layer's input, o from the attention output,
    gate_up from the second norm, down from the gated product; and shrink must end before expand, so eight launches.

    problems: from problem_list (bfloat16 or float16; x and out may have a row stride). out is written in place.
    Refused (by problem_list, LayoutError): mixed dtypes or devices, shapes that do not fit, w not contiguous.
    """
    total = int(problems.work.shape[0])
    if total == 0:
        return
    grid = (min(total, multiprocessors(device_index(problems.like)) * 8),)
    grouped_products[grid](
        problems.problems,
        problems.work,
        problems.like,
        total,
        ROWS=problems.rows,
        BN=problems.block,
        BK=32 if INTERPRET else 128,
        TRANSPOSED=problems.transposed,
        ADD=add,
        ALIGNED=problems.aligned,
        UPCAST=INTERPRET,
        **options(4, 3, False),
    )


def reference_grouped_gemm(
    problems: Sequence[tuple[torch.Tensor, torch.Tensor]], transposed: bool = True
) -> list[torch.Tensor]:
    """x_i w_i^T (or x_i w_i) in float32 for every (x_i, w_i)."""
    return [x.float() @ (w.float().t() if transposed else w.float()) for x, w in problems]
