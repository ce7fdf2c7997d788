"""GPU time of vLLM's Triton shrink and expand kernels, counted in thread blocks.

Both kernels launch a grid over (tiles, slices, slots + 1). A block whose slot is not in use, or whose row tile lies
beyond its adapter's tokens, exits at once: `dead`. The others do one tile at the slot's padded rank. So the grid grows
with slots and the useful work with distinct adapters; a rank below the slot's costs as much as the slot's.
Tiles: lora_shrink_op.py and lora_expand_op.py of vLLM 0.20, default configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from simlora.latency.calibration import LoraKernelParameters
from simlora.latency.cuda_graphs import active_adapter_grid
from simlora.latency.shapes import Linear

SPLIT_TOKENS = 128
"""At this many tokens the shrink kernel changes its split of the K axis."""
EXPERT_LINEARS = ("gate_up", "down")
"""Every expert of every adapter is a weight of its own there."""
SHRINK_ROWS, SHRINK_COLUMNS = 32, 16
EXPAND_ROWS, EXPAND_COLUMNS_SLICED, EXPAND_COLUMNS_SINGLE = 64, 64, 128
"""Defaults of 0.20; 0.8.5 has 128 columns for several slices, too (execution.py)."""


def active_experts(experts: int, per_token: int, tokens: Any) -> Any:
    """Expected distinct experts that `tokens` tokens (number or array) reach, each picking `per_token` uniformly."""
    return experts * (1.0 - (1.0 - per_token / experts) ** tokens)


def split_k(tokens: int) -> int:
    """Blocks that share one K axis."""
    return 64 if tokens < SPLIT_TOKENS else 8


def row_tiles(lora_tokens: int, adapters: int, rows: int) -> float:
    """Expected row tiles over all adapters: every adapter has one, and half a tile of waste for each but the first."""
    if not adapters:
        return 0.0
    return max(float(adapters), float(-(-lora_tokens // rows)), lora_tokens / rows + 0.5 * (adapters - 1))


class _Tiles(NamedTuple):
    """Constants of several linears, summed over layers."""

    launches: int
    slices: int
    expand_all: int
    """Column tiles of the expand grid per row tile: the widest slice's, for every slice."""
    expand_used: int
    """Those that do work."""
    row_bytes: int
    """Inputs read by every slice of shrink, and outputs read and written by expand, per token; 16-bit."""

    @classmethod
    def of(cls, linears: Sequence[Linear], layers: int, columns_sliced: int) -> _Tiles:
        slices = expand_all = expand_used = row_bytes = 0
        for linear in linears:
            width = columns_sliced if len(linear.outputs) > 1 else EXPAND_COLUMNS_SINGLE
            slices += len(linear.outputs)
            expand_all += -(-max(linear.outputs) // width) * len(linear.outputs)
            expand_used += sum(-(-out // width) for out in linear.outputs)
            row_bytes += 2 * linear.inputs * len(linear.outputs) + 4 * sum(linear.outputs)
        return cls(*(layers * count for count in (len(linears), slices, expand_all, expand_used, row_bytes)))


@dataclass(frozen=True)
class LoraKernels:
    """Prices one engine configuration's LoRA kernels."""

    parameters: LoraKernelParameters
    linears: tuple[Linear, ...]
    layers: int
    head: Linear | None
    """lm_head, where the engine wraps it."""
    experts: tuple[int, int]
    """Experts of a layer and experts a token uses, where the MLP is a mixture and wrapped; else (0, 0)."""
    max_loras: int
    specialize: bool
    columns_sliced: int = EXPAND_COLUMNS_SLICED
    """Column tile of expand where a linear has several slices."""
    unused_runs: bool = False
    """A step without adapters launches the whole grid, and every block of it exits at once."""
    _dense: _Tiles = field(init=False, repr=False, compare=False)
    _mixed: _Tiles = field(init=False, repr=False, compare=False)
    _head: _Tiles = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        mixed = [item for item in self.linears if self.experts[0] and item.name in EXPERT_LINEARS]
        dense = [item for item in self.linears if item not in mixed]
        for name, linears, layers in (
            ("_dense", dense, self.layers),
            ("_mixed", mixed, self.layers),
            ("_head", [self.head] if self.head else [], 1),
        ):
            object.__setattr__(self, name, _Tiles.of(linears, layers, self.columns_sliced))

    def step_s(self, tokens: int, lora_tokens: int, adapters: int, rank: int, head_rows: int) -> float:
        """Seconds of a step of `tokens` padded tokens, `lora_tokens` of them over `adapters`, in slots of `rank`."""
        if adapters <= 0 and not self.unused_runs:
            return 0.0
        grid = active_adapter_grid(adapters, self.max_loras, self.specialize)
        used = max(lora_tokens, adapters)
        seconds = self._tiles_s(self._dense, tokens, used, adapters, rank, grid)
        if self._mixed.launches:
            experts, per_token = self.experts
            reached = active_experts(experts, per_token, used / adapters) if adapters else 0
            pairs = max(round(adapters * reached), adapters)
            seconds += self._tiles_s(self._mixed, tokens, used * per_token, pairs, rank, grid)
        if self._head.launches:
            rows = min(used, max(head_rows, adapters))
            seconds += self._tiles_s(self._head, head_rows, rows, adapters, rank, grid)
        return seconds

    def _tiles_s(self, tiles: _Tiles, tokens: int, used: int, adapters: int, rank: int, grid: int) -> float:
        """Linears that see the same tokens: `used` rows over `adapters` distinct weights."""
        p = self.parameters
        wide = tokens >= SPLIT_TOKENS
        shrink = split_k(tokens) * -(-rank // SHRINK_COLUMNS) * tiles.slices
        shrink_rows, expand_rows = -(-tokens // SHRINK_ROWS), -(-tokens // EXPAND_ROWS)
        shrink_used = shrink * row_tiles(used, adapters, SHRINK_ROWS)
        expand_used = tiles.expand_used * row_tiles(used, adapters, EXPAND_ROWS)
        unused = max(grid - adapters, 0)
        shrink_dead = shrink * shrink_rows * unused + p.surplus_factor * max(
            shrink * shrink_rows * (grid - unused) - shrink_used, 0.0
        )
        expand_dead = tiles.expand_all * expand_rows * unused + p.surplus_factor * max(
            tiles.expand_all * expand_rows * (grid - unused) - expand_used, 0.0
        )
        seconds = (
            tiles.launches * (2.0 * p.launch_s + p.zero_s)
            + shrink_dead * p.dead_shrink_s
            + shrink_used * (p.shrink_wide_s if wide else p.shrink_s)
            + expand_dead * p.dead_expand_s
            + expand_used * (p.expand_wide_s if wide else p.expand_s)
        )
        if p.row_bytes_per_s is not None:
            seconds += used * tiles.row_bytes / p.row_bytes_per_s
        return seconds
