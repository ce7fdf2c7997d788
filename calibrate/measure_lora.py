"""The LoRA time of a whole step: all layers and projections in one CUDA graph, by kernel family."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from .bench import Bench, Row, Rows, measured
from .grid import LoraSet
from .lora_kernels import (
    LoraStep,
    LoraWeights,
    MakeStep,
    bgmv_rows,
    lora_step,
    padded_slots,
    sglang,
    shrink_zeroing,
    simlora,
    slot_weights,
    vllm,
)

FAMILIES: dict[str, Callable[[Bench, LoraWeights], MakeStep]] = {
    "vllm": vllm, "sglang": sglang, "simlora": simlora, "padded": padded_slots, "bgmv": bgmv_rows,
}  # fmt: skip
ZEROED = ("vllm", "padded")
"""Families beside which the zeroing of their shrink buffers is measured."""


def lora_steps(bench: Bench, families: Iterable[str], chosen: LoraSet) -> Rows:
    """Every point of a set, for each family; where `distinct` exceeds the slots a point is left out."""
    weights = slot_weights(bench, chosen)
    for family in families:
        make = FAMILIES[family](bench, weights)
        zero = shrink_zeroing(bench, weights) if family in ZEROED else None
        for point in chosen.points:
            if point["distinct"] > chosen.slots:
                continue
            step = lora_step(bench, weights, point)
            yield _timed(bench, "lora_step", make, step, family=family, **_sizes(chosen, weights, step))
            if zero is not None and point["distinct"] == 1:
                yield _timed(bench, "lora_zero", zero, step, family=family, **_sizes(chosen, weights, step))
        bench.release()


def _timed(bench: Bench, op: str, make: MakeStep, step: LoraStep, **sizes: Any) -> Row:
    try:
        run = make(step)
    except (RuntimeError, ValueError, TypeError) as failed:
        return {"note": f"{op} {sizes}: {type(failed).__name__}: {str(failed)[:160]}"}
    return measured(op, bench.timer.graph, run, **sizes)


def _sizes(chosen: LoraSet, weights: LoraWeights, step: LoraStep) -> dict[str, object]:
    """What a fit needs: `ranks` and `rank_tokens` are sums over the distinct adapters and over their tokens."""
    mapping = step.mapping[step.mapping >= 0].tolist()
    return {
        "model": chosen.model, "tp": chosen.tp, "layers": len(weights.layers), "slots": chosen.slots,
        "slot_rank": chosen.slot_rank, "tokens": step.tokens, "lora_tokens": step.lora_tokens,
        "adapters": step.adapters, "rank_mix": sorted(set(weights.ranks)), "largest_share": _largest_share(mapping),
        "sum_of_ranks": sum(weights.ranks[a] for a in set(mapping)),
        "sum_of_token_ranks": sum(weights.ranks[a] for a in mapping),
    }  # fmt: skip


def _largest_share(mapping: list[int]) -> float:
    """Share of the LoRA tokens that belong to the most used adapter."""
    return max(mapping.count(adapter) for adapter in set(mapping)) / len(mapping) if mapping else 0.0
