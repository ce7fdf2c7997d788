"""What a step asks of LoRA kernels, and what it costs in physical terms."""

from __future__ import annotations

from typing import NamedTuple

from simlora.latency.calibration_engines import FamilyParameters
from simlora.latency.step import AdapterMix


class LoraWork(NamedTuple):
    """One step's LoRA work. Tokens are rows of the kernels."""

    tokens: int
    """Rows of the step, padded to a captured size where it runs in a graph."""
    lora_tokens: int
    adapters: int
    """Distinct adapters."""
    mix: AdapterMix
    head_rows: int
    """Rows that get logits."""
    sequences: int
    """Decodes and prompts."""
    longest: int = 1
    """Tokens of the longest sequence: 1 in a step of decodes."""

    @property
    def mean_rank(self) -> float:
        """Over the LoRA tokens."""
        return self.mix.rank_tokens / self.lora_tokens if self.lora_tokens else 0.0


class Cost(NamedTuple):
    """Physical size of some kernels; seconds = a price per unit of each, summed."""

    products: float
    """Kernels that multiply."""
    fills: float = 0.0
    """Trivial kernels: zero fills, index arithmetic, additions."""
    depth: float = 0.0
    """Input columns times rows of a tile, summed over the kernels that shrink."""
    ranks: float = 0.0
    """Mean rank, summed over the kernels."""
    tiles: float = 0.0
    weight_bytes: float = 0.0
    """Read once."""
    repeated_bytes: float = 0.0
    """Read again, by further tiles of the same adapter."""
    operations: float = 0.0
    activation_bytes: float = 0.0
    views: float = 0.0
    """Views of tensors taken in Python: host time only."""


def seconds(cost: Cost, parameters: FamilyParameters, fill_s: float) -> float:
    """The price of a cost; fill_s is that of one trivial kernel."""
    p = parameters
    total = (
        cost.products * p.launch_s
        + cost.fills * fill_s
        + cost.depth * p.depth_s
        + cost.ranks * p.rank_s
        + cost.tiles * p.tile_s
    )
    if p.bytes_per_s is not None:
        total += cost.weight_bytes / p.bytes_per_s
    if p.cache_bytes_per_s is not None:
        total += cost.repeated_bytes / p.cache_bytes_per_s
    if p.flops is not None:
        total += cost.operations / p.flops
    if p.activation_bytes_per_s is not None:
        total += cost.activation_bytes / p.activation_bytes_per_s
    return total
