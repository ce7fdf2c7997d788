"""Adapters in host memory and the slots they go to: what a load moves, module by module."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from simlora.scenario.lora_modules import ALL_LINEAR, module_shape
from simlora.scenario.model import ModelSpec

from .bench import Bench


@dataclass(frozen=True)
class Pair:
    """One module of one layer: A [rank, inputs] and B [outputs, rank]."""

    name: str
    layer: int
    a: torch.Tensor
    b: torch.Tensor


def module_shapes(model: ModelSpec) -> Iterator[tuple[str, int, int]]:
    """(module, inputs, outputs) of one layer."""
    for module in ALL_LINEAR:
        inputs, outputs, _ = module_shape(model, module)
        yield module, inputs, outputs


def host_adapter(bench: Bench, model: ModelSpec, rank: int, pinned: bool) -> list[Pair]:
    """An adapter as an engine keeps it in host memory: one tensor a matrix."""

    def tensor(rows: int, columns: int) -> torch.Tensor:
        made = torch.randn(rows, columns, dtype=torch.float32).mul_(0.02).to(bench.dtype)
        return made.pin_memory() if pinned and bench.on_gpu else made

    # One layer's values serve all layers: only their addresses matter to a copy.
    values = {name: (tensor(rank, i), tensor(outputs, rank)) for name, i, outputs in module_shapes(model)}

    def own(value: torch.Tensor) -> torch.Tensor:
        copy = torch.empty_like(value, pin_memory=pinned and bench.on_gpu)
        return copy.copy_(value)

    layers = range(model.num_hidden_layers)
    return [Pair(name, layer, own(a), own(b)) for layer in layers for name, (a, b) in values.items()]


def slot_buffers(bench: Bench, model: ModelSpec, slot_rank: int, slots: int) -> list[Pair]:
    """A [slots, 1, slot rank, inputs] and B [slots, 1, outputs, slot rank] of every module on the device."""
    return [
        Pair(
            name, layer,
            bench.empty(slots, 1, slot_rank, inputs).zero_(),
            bench.empty(slots, 1, outputs, slot_rank).zero_(),
        )
        for layer in range(model.num_hidden_layers)
        for name, inputs, outputs in module_shapes(model)
    ]  # fmt: skip
