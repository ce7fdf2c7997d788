"""Attention over the KV cache of one layer: decode over requests and context, prefill over chunk and context.

Each shape is timed with every kernel that is installed, and the fastest one counts: torch's own (flash, cuDNN,
memory-efficient) and FlashAttention packages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

from .bench import Bench, Row, Rows, measured
from .grid import model_named

PAGE_TOKENS = 16
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class AttentionKernel:
    """q [batch, tokens, heads, dim]; k, v [batch, context, kv_heads, dim]: the last tokens of the context attend.

    decode takes one token a request; prefill is causal, its tokens being the last of the context.
    """

    name: str
    decode: Attend
    prefill: Attend


def attention_kernels(device: str) -> list[AttentionKernel]:
    """Everything that may run here; whether it runs a shape shows when it is timed."""
    if device == "cpu":
        return [_torch_kernel("torch-math", SDPBackend.MATH)]
    found = [
        _torch_kernel("torch-flash", SDPBackend.FLASH_ATTENTION),
        _torch_kernel("torch-cudnn", SDPBackend.CUDNN_ATTENTION),
    ]
    return [kernel for kernel in (_vllm_flash(3), _vllm_flash(2), _flash_package(), *found, _two_parts()) if kernel]


def _torch_kernel(name: str, backend: SDPBackend) -> AttentionKernel:
    attend = torch.nn.functional.scaled_dot_product_attention

    def decode(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        # Query heads of a key-value head become query tokens: its keys and values are then read once for all of them.
        batch, _, heads, dim = q.shape
        grouped = q.view(batch, k.shape[2], heads // k.shape[2], dim)
        with sdpa_kernel(backend):
            return attend(grouped, k.transpose(1, 2), v.transpose(1, 2))

    def prefill(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        tokens, context = q.shape[1], k.shape[1]
        bias = None if tokens == context else causal_lower_right(tokens, context)
        with sdpa_kernel(backend):
            return attend(
                q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=bias, is_causal=bias is None,
                enable_gqa=True,
            )  # fmt: skip

    return AttentionKernel(name, decode, prefill)


def _two_parts() -> AttentionKernel:
    """cuDNN for a chunk after a context, which it takes only apart: the context without a mask, then the chunk itself.

    The parts are merged without their softmax weights: the result is of no use, its time is.
    """
    whole = _torch_kernel("torch-cudnn", SDPBackend.CUDNN_ATTENTION)
    attend = torch.nn.functional.scaled_dot_product_attention

    def prefill(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        start = k.shape[1] - q.shape[1]
        if start == 0:
            raise ValueError("nothing before the chunk")
        own = whole.prefill(q, k[:, start:], v[:, start:])
        queries, keys, values = (x.transpose(1, 2) for x in (q, k[:, :start], v[:, :start]))
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            before = attend(queries, keys, values, enable_gqa=True)
        return torch.lerp(own, before, 0.5)

    return AttentionKernel("torch-cudnn in two parts", _unsupported, prefill)


def _unsupported(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    raise NotImplementedError("prefill only")


def _flash_package() -> AttentionKernel | None:
    """FlashAttention 3 (flash_attn_interface), else 2 (flash_attn)."""
    try:
        from flash_attn_interface import flash_attn_func, flash_attn_with_kvcache

        name = "flash-attn-3"
    except ImportError:
        try:
            from flash_attn import flash_attn_func, flash_attn_with_kvcache

            name = "flash-attn-2"
        except ImportError:
            return None
    return AttentionKernel(
        name,
        decode=lambda q, k, v: flash_attn_with_kvcache(q, k, v, causal=True),
        prefill=lambda q, k, v: flash_attn_func(q, k, v, causal=True),
    )


def _vllm_flash(version: int) -> AttentionKernel | None:
    """vLLM's build of FlashAttention over a paged cache, as vLLM calls it."""
    try:
        from vllm.vllm_flash_attn import flash_attn_varlen_func, is_fa_version_supported
    except (ImportError, OSError, RuntimeError):
        return None
    if not is_fa_version_supported(version):
        return None
    places: dict[tuple[int, int, int], tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        batch, tokens, context = q.shape[0], q.shape[1], k.shape[1]
        key = (batch, tokens, context)
        if key not in places:  # made once: a graph would hold their making
            places[key] = _pages(batch, tokens, context, q.device)
        ends, used, table = places[key]
        pages = [cache.view(-1, PAGE_TOKENS, *cache.shape[2:]) for cache in (k, v)]
        out: torch.Tensor = flash_attn_varlen_func(
            q.flatten(0, 1), *pages, max_seqlen_q=tokens, cu_seqlens_q=ends, max_seqlen_k=context, seqused_k=used,
            block_table=table, causal=True, fa_version=version,
        )  # fmt: skip
        return out

    return AttentionKernel(f"vllm-flash-attn-{version}", attend, attend)


def _pages(
    batch: int, tokens: int, context: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(ends of the queries, tokens in each cache, pages of each request in order)."""
    whole: dict[str, Any] = {"dtype": torch.int32, "device": device}
    each = context // PAGE_TOKENS
    ends = torch.arange(batch + 1, **whole) * tokens
    return ends, torch.full((batch,), context, **whole), torch.arange(batch * each, **whole).view(batch, each)


Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def decode_attention(bench: Bench, model: str, tp: int, requests: tuple[int, ...], contexts: tuple[int, ...]) -> Rows:
    """One new token for each of `requests` requests that have `context` tokens each."""
    heads, dim, size = _heads(model, tp)
    candidates = [(kernel.name, kernel.decode) for kernel in attention_kernels(bench.device)]
    for context in contexts:
        for count in requests:
            moved = 2 * count * context * heads[1] * dim * size
            if moved > 0.3 * bench.memory_bytes:
                continue
            inputs = _inputs(bench, (count, 1, heads[0], dim), (count, context, heads[1], dim), bench.copies(moved))
            shape = {"model": model, "tp": tp, "requests": count, "context": context}
            yield from _fastest(bench, "attention_decode", candidates, inputs, shape)
        bench.release()


def prefill_attention(bench: Bench, model: str, tp: int, chunks: tuple[int, ...], starts: tuple[int, ...]) -> Rows:
    """`new` tokens of one prompt, after `start` tokens that are in the cache."""
    heads, dim, size = _heads(model, tp)
    candidates = [(kernel.name, kernel.prefill) for kernel in attention_kernels(bench.device)]
    for start in starts:
        for new in chunks:
            moved = 2 * (start + new) * heads[1] * dim * size
            copies = min(bench.copies(moved), 16)
            inputs = _inputs(bench, (1, new, heads[0], dim), (1, start + new, heads[1], dim), copies)
            shape = {"model": model, "tp": tp, "start": start, "new": new}
            yield from _fastest(bench, "attention_prefill", candidates, inputs, shape)
        bench.release()


def _heads(model: str, tp: int) -> tuple[tuple[int, int], int, int]:
    """((query heads, key-value heads) of one rank, head dimension, bytes of an element)."""
    spec = model_named(model)
    heads = (spec.num_attention_heads // tp, max(spec.num_key_value_heads // tp, 1))
    return heads, spec.head_dim, spec.dtype_bytes


def _inputs(bench: Bench, query: tuple[int, ...], cache: tuple[int, ...], copies: int) -> list[Inputs]:
    return [(bench.normal(*query), bench.normal(*cache), bench.normal(*cache)) for _ in range(copies)]


def _fastest(
    bench: Bench, op: str, candidates: list[tuple[str, Attend]], inputs: list[Inputs], shape: dict[str, object]
) -> Rows:
    """The sample of the kernel with the least median; notes of those that cannot run the shape only if none can."""
    tried = [_timed(bench, op, name, attend, inputs, shape) for name, attend in candidates]
    rows = [row for row in tried if "note" not in row]
    if rows:
        yield min(rows, key=lambda row: row["p50"])
    else:
        yield from tried


def _timed(bench: Bench, op: str, name: str, attend: Attend, inputs: list[Inputs], shape: dict[str, object]) -> Row:
    run: Callable[[], list[torch.Tensor]] = lambda: [attend(*tensors) for tensors in inputs]  # noqa: E731
    return measured(op, bench.timer.graph, run, len(inputs), kernel=name, **shape)
