"""This project's LoRA kernels on the slots of an engine: each family turns weights into a step that can be timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from simlora.kernels import apply_lora, bgmv, build_segments, from_tensors, padded, step_segments
from simlora.kernels.layout import GroupWeights
from simlora.kernels.segments import Segments

from .bench import Bench
from .lora_weights import LoraStep, LoraWeights, MakeStep

PADDED_ROWS = 16
MOST_BGMV_TOKENS = 512
"""One row of work a token: far too slow beyond decode steps."""


def simlora(bench: Bench, weights: LoraWeights) -> MakeStep:
    """apply_lora: each adapter at its own rank; decode kernels below 512 tokens, prefill kernels from there."""
    groups = _groups(weights, weights.ranks)

    def make(step: LoraStep) -> Callable[[], None]:
        segments = step_segments(step.mapping.to(bench.device), weights.slots)
        return _loop(groups, weights, step, segments, apply_lora)

    return make


def bgmv_rows(bench: Bench, weights: LoraWeights) -> MakeStep:
    """One row of work for each token."""
    groups = _groups(weights, weights.ranks)

    def make(step: LoraStep) -> Callable[[], None]:
        if step.tokens > MOST_BGMV_TOKENS:
            raise ValueError(f"bgmv is for up to {MOST_BGMV_TOKENS} tokens")
        return _loop(groups, weights, step, build_segments(step.mapping.to(bench.device), weights.slots, 1), bgmv)

    return make


def padded_slots(bench: Bench, weights: LoraWeights) -> MakeStep:
    """The algorithm that vLLM ships: every adapter at the slots' rank, a grid over all slots."""
    groups = _groups(weights, (weights.slot_rank,) * weights.slots)

    def make(step: LoraStep) -> Callable[[], None]:
        segments = build_segments(step.mapping.to(bench.device), weights.slots, PADDED_ROWS)
        return _loop(groups, weights, step, segments, padded)

    return make


def _groups(weights: LoraWeights, ranks: tuple[int, ...]) -> list[list[GroupWeights]]:
    """Pointer arrays: A where it lies, B in a rank-major copy."""
    return [[_group(a, b, ranks) for a, b in layer] for layer in weights.layers]


def _group(a: list[torch.Tensor], b: list[torch.Tensor], ranks: tuple[int, ...]) -> GroupWeights:
    rows = [list(part.squeeze(1).unbind(0)) for part in a]
    columns = [list(part.squeeze(1).transpose(1, 2).contiguous().unbind(0)) for part in b]
    return from_tensors(rows, columns, [1.0] * len(ranks), ranks)


def _loop(
    groups: list[list[GroupWeights]],
    weights: LoraWeights,
    step: LoraStep,
    segments: Segments,
    kernel: Callable[..., Any],
) -> Callable[[], None]:
    linears, x, y = weights.linears, step.x, step.y

    def run() -> None:
        for layer in groups:
            for linear, group in zip(linears, layer, strict=True):
                kernel(x[linear.inputs], group, segments, y[linear.name])

    return run
