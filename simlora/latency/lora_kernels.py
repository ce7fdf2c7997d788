"""GPU time of vLLM's Triton shrink and expand kernels, counted in thread blocks.

Both kernels launch a grid over (tiles, slices, slots + 1). A block whose slot is not in use, or whose row tile lies
beyond its adapter's tokens, exits at once: `dead`. The others do one tile at the slot's padded rank. So the grid grows
with slots and the useful work with distinct adapters; a rank below the slot's costs as much as the slot's.
Tiles: lora_shrink_op.py and lora_expand_op.py of vLLM 0.20, default configuration.
"""

from __future__ import annotations

from dataclasses import dataclass

from simlora.latency.calibration import LoraKernelParameters
from simlora.latency.graphs import active_adapter_grid
from simlora.latency.shapes import Linear

SPLIT_TOKENS = 128
"""At this many tokens the shrink kernel changes its split of the K axis."""
SHRINK_ROWS, SHRINK_COLUMNS = 32, 16
EXPAND_ROWS, EXPAND_COLUMNS_SLICED, EXPAND_COLUMNS_SINGLE = 64, 64, 128


def active_experts(experts: int, per_token: int, tokens: float) -> float:
    """Expected distinct experts that `tokens` tokens reach when each picks `per_token` uniformly."""
    return float(experts * (1.0 - (1.0 - per_token / experts) ** tokens))


def split_k(tokens: int) -> int:
    """Blocks that share one K axis."""
    return 64 if tokens < SPLIT_TOKENS else 8


def row_tiles(lora_tokens: int, adapters: int, rows: int) -> float:
    """Expected row tiles over all adapters: every adapter has one, and half a tile of waste for each but the first."""
    return max(float(adapters), float(-(-lora_tokens // rows)), lora_tokens / rows + 0.5 * (adapters - 1))


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

    def step_s(self, tokens: int, lora_tokens: int, adapters: int, rank: int, head_rows: int) -> float:
        """Seconds of a step of `tokens` padded tokens, `lora_tokens` of them over `adapters`, in slots of `rank`."""
        if adapters <= 0:
            return 0.0
        grid = active_adapter_grid(adapters, self.max_loras, self.specialize)
        used = max(lora_tokens, adapters)
        seconds = 0.0
        for linear in self.linears:
            work, segments = self._expert_work(linear, used, adapters)
            seconds += self.layers * self._linear_s(linear, tokens, work, segments, rank, grid)
        if self.head is not None:
            seconds += self._linear_s(self.head, head_rows, min(used, max(head_rows, adapters)), adapters, rank, grid)
        return seconds

    def _expert_work(self, linear: Linear, used: int, adapters: int) -> tuple[int, int]:
        """(rows, distinct weights) of a linear: every expert of every adapter is a weight of its own."""
        experts, per_token = self.experts
        if not experts or linear.name not in ("gate_up", "down"):
            return used, adapters
        pairs = round(adapters * active_experts(experts, per_token, used / adapters))
        return used * per_token, max(pairs, adapters)

    def _linear_s(self, linear: Linear, tokens: int, used: int, adapters: int, rank: int, grid: int) -> float:
        p = self.parameters
        slices = len(linear.outputs)
        split, columns = split_k(tokens), -(-rank // SHRINK_COLUMNS)
        shrink_all = split * -(-tokens // SHRINK_ROWS) * columns * slices * grid
        shrink_used = split * row_tiles(used, adapters, SHRINK_ROWS) * columns * slices
        width = EXPAND_COLUMNS_SLICED if slices > 1 else EXPAND_COLUMNS_SINGLE
        expand_all = -(-tokens // EXPAND_ROWS) * -(-max(linear.outputs) // width) * slices * grid
        expand_used = row_tiles(used, adapters, EXPAND_ROWS) * sum(-(-out // width) for out in linear.outputs)
        wide = tokens >= SPLIT_TOKENS
        blocks_s = (
            max(shrink_all - shrink_used, 0.0) * p.dead_shrink_s
            + shrink_used * (p.shrink_wide_s if wide else p.shrink_s)
            + max(expand_all - expand_used, 0.0) * p.dead_expand_s
            + expand_used * (p.expand_wide_s if wide else p.expand_s)
        )
        return 2.0 * p.launch_s + p.zero_s + blocks_s
