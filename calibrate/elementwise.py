"""Element-wise kernels of a decoder layer, fused as serving engines fuse them: one launch each.

Plain torch would need several launches for each and would measure torch's launches, not the layer's memory traffic.
"""
# ruff: noqa: N803  (compile-time parameters are upper case)

from __future__ import annotations

import torch
import triton
import triton.language as tl

EPSILON = 1e-5
SILU_BLOCK = 1024


@triton.jit
def _add_norm(x, residual, weight, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr, EPS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * WIDTH
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    total = tl.load(x + row + column, mask=inside, other=0.0).to(tl.float32)
    total += tl.load(residual + row + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(residual + row + column, total, mask=inside)
    scale = tl.rsqrt(tl.sum(total * total, 0) / WIDTH + EPS)
    tl.store(out + row + column, total * scale * tl.load(weight + column, mask=inside, other=0.0), mask=inside)


@triton.jit
def _silu_mul(gate_up, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    gate = tl.load(gate_up + row * 2 * width + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + column, gate * tl.sigmoid(gate) * up, mask=inside)


@triton.jit
def _rope(
    qkv, cosine, sine, cache, rotated,
    HEADS: tl.constexpr, Q_HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, BLOCK)[:, None]
    column = tl.arange(0, HALF)[None, :]
    inside = head < HEADS
    source = qkv + (token * HEADS + head) * 2 * HALF + column
    first = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + HALF, mask=inside, other=0.0).to(tl.float32)
    cos = tl.where(head < rotated, tl.load(cosine + token * HALF + column), 1.0)
    sin = tl.where(head < rotated, tl.load(sine + token * HALF + column), 0.0)
    turned_first, turned_second = first * cos - second * sin, second * cos + first * sin
    tl.store(source, turned_first, mask=head < Q_HEADS)
    tl.store(source + HALF, turned_second, mask=head < Q_HEADS)
    cached = cache + (token * (HEADS - Q_HEADS) + head - Q_HEADS) * 2 * HALF + column
    tl.store(cached, turned_first, mask=inside & (head >= Q_HEADS))
    tl.store(cached + HALF, turned_second, mask=inside & (head >= Q_HEADS))


def add_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    """residual += x, out = RMS norm of the sum times weight. All [tokens, width]."""
    if not x.is_cuda:
        residual += x
        out.copy_(torch.nn.functional.rms_norm(residual, (x.shape[1],), weight, EPSILON))
        return
    width = x.shape[1]
    _add_norm[(x.shape[0],)](
        x, residual, weight, out, WIDTH=width, BLOCK=triton.next_power_of_2(width), EPS=EPSILON, num_warps=8
    )


def silu_mul(gate_up: torch.Tensor, out: torch.Tensor) -> None:
    """out [tokens, width] = silu of the left half of gate_up [tokens, 2 width] times its right half."""
    width = out.shape[1]
    if not out.is_cuda:
        out.copy_(torch.nn.functional.silu(gate_up[:, :width]) * gate_up[:, width:])
        return
    _silu_mul[(out.shape[0], triton.cdiv(width, SILU_BLOCK))](gate_up, out, width, BLOCK=SILU_BLOCK, num_warps=4)


def rope_and_cache(
    qkv: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor], cache: torch.Tensor, heads: tuple[int, int]
) -> None:
    """Rotate query heads in place, and write rotated keys and plain values to the cache.

    qkv [tokens, (query + 2 key-value heads) * head_dim]; angles: cosine and sine, float32 [tokens, head_dim / 2];
    cache [tokens, 2 key-value heads * head_dim]; heads: (query heads, key-value heads).
    """
    queries, keys = heads
    tokens, half = qkv.shape[0], angles[0].shape[1]
    if not qkv.is_cuda:
        _rope_reference(qkv, angles, cache, heads)
        return
    total = queries + 2 * keys
    block = triton.next_power_of_2(total)
    _rope[(tokens,)](
        qkv, *angles, cache, queries + keys, HEADS=total, Q_HEADS=queries, HALF=half, BLOCK=block,
        num_warps=8 if block > 32 else 4,
    )  # fmt: skip


def _rope_reference(
    qkv: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor], cache: torch.Tensor, heads: tuple[int, int]
) -> None:
    queries, keys = heads
    tokens, half = qkv.shape[0], angles[0].shape[1]
    parts = qkv.view(tokens, queries + 2 * keys, 2, half)
    cos, sin = (part[:, None, :] for part in angles)
    turned = parts[:, : queries + keys].float()
    first, second = turned[:, :, 0], turned[:, :, 1]
    both = torch.stack((first * cos - second * sin, second * cos + first * sin), 2).to(qkv.dtype)
    cache.view(tokens, 2 * keys, 2, half).copy_(torch.cat((both[:, queries:], parts[:, queries + keys :]), 1))
    parts[:, :queries] = both[:, :queries]
