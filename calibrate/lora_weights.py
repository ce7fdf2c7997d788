"""Adapters in the slots of every layer, as serving engines keep them, for LoRA kernels to be timed on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from simlora.latency.shapes import Linear, lora_linears
from simlora.scenario.lora_modules import ALL_LINEAR

from .bench import Bench
from .grid import LoraSet
from .models import model_named

Slices = list[torch.Tensor]
Layer = list[tuple[Slices, Slices]]
"""Per linear: A of every slice [slots, 1, slot rank, inputs], B of every slice [slots, 1, outputs, slot rank]."""
BUFFERS_FACTOR = 2.6
"""Memory for slots in the engine's layout, a rank-major copy of B, and one family's own layout of both."""


@dataclass(frozen=True)
class LoraWeights:
    """Slots of all layers of a model on one rank of tp."""

    linears: tuple[Linear, ...]
    layers: list[Layer]
    ranks: tuple[int, ...]
    """Own rank of the adapter in each slot."""
    slot_rank: int

    @property
    def slots(self) -> int:
        return len(self.ranks)


def slot_weights(bench: Bench, chosen: LoraSet) -> LoraWeights:
    """Random adapters, every layer's distinct, so that no cache holds them from one layer to the next."""
    model = model_named(chosen.model)
    linears = lora_linears(model, chosen.tp, ALL_LINEAR)
    elements = sum(linear.inputs * len(linear.outputs) + sum(linear.outputs) for linear in linears)
    total = elements * chosen.slots * chosen.slot_rank * model.num_hidden_layers * bench.dtype.itemsize
    bench.require_memory(BUFFERS_FACTOR * total)
    layers = [[_slices(bench, linear, chosen) for linear in linears] for _ in range(model.num_hidden_layers)]
    ranks = tuple(chosen.ranks[slot % len(chosen.ranks)] for slot in range(chosen.slots))
    return LoraWeights(linears, layers, ranks, chosen.slot_rank)


def _slices(bench: Bench, linear: Linear, chosen: LoraSet) -> tuple[Slices, Slices]:
    slots, rank = chosen.slots, chosen.slot_rank
    a = [bench.normal(slots, 1, rank, linear.inputs, scale=0.02) for _ in linear.outputs]
    b = [bench.normal(slots, 1, outputs, rank, scale=0.02) for outputs in linear.outputs]
    return a, b


@dataclass(frozen=True)
class LoraStep:
    """Inputs and outputs of one step. mapping: slot of every token, -1 for the base model's, on the host."""

    mapping: torch.Tensor
    x: Mapping[int, torch.Tensor]
    """Input width -> activations."""
    y: Mapping[str, torch.Tensor]
    """Linear -> outputs of all slices, added into."""

    @property
    def tokens(self) -> int:
        return int(self.mapping.shape[0])

    @property
    def lora_tokens(self) -> int:
        return int((self.mapping >= 0).sum())

    @property
    def adapters(self) -> int:
        """Distinct adapters."""
        return int(self.mapping[self.mapping >= 0].unique().numel())


def lora_step(bench: Bench, weights: LoraWeights, point: Mapping[str, Any]) -> LoraStep:
    mapping = token_mapping(**point)
    tokens = int(mapping.shape[0])
    x = {width: bench.normal(tokens, width) for width in {linear.inputs for linear in weights.linears}}
    y = {linear.name: bench.normal(tokens, sum(linear.outputs)) for linear in weights.linears}
    return LoraStep(mapping, x, y)


def token_mapping(tokens: int, distinct: int, zipf: float = 0.0, base_share: float = 0.0) -> torch.Tensor:
    """int32 [tokens]: equal shares of `distinct` adapters, or Zipf shares; base tokens are -1. Shuffled, seeded."""
    generator = torch.Generator().manual_seed(1)
    base = round(base_share * tokens)
    adapters = torch.arange(tokens - base) % distinct
    if zipf > 0.0:
        shares = 1.0 / torch.arange(1, distinct + 1, dtype=torch.float64) ** zipf
        drawn = torch.multinomial(shares, tokens - base, replacement=True, generator=generator)
        adapters = torch.where(torch.arange(tokens - base) < distinct, adapters, drawn)
    both = torch.cat((adapters, torch.full((base,), -1)))
    return both[torch.randperm(tokens, generator=generator)].to(torch.int32)


MakeStep = Callable[[LoraStep], Callable[[], None]]
"""Given a step's inputs, what runs the LoRA part of all layers once."""
