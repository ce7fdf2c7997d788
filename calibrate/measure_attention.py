"""Attention over the KV cache of one layer: decode over requests and context, prefill over chunk and context."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .attention_kernels import Attend, attention_kernels
from .bench import Bench, Row, Rows, measured
from .models import model_named

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
