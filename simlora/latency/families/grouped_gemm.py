"""FlashInfer's segment GEMM: CUTLASS grouped GEMM with tiles of 128 x 128, two runs a projection.

A decode row fills 1 of a tile's 128 rows, a rank of 16 fills 16 of its 128 columns: all of it is multiplied. Before
Hopper only 4 thread blocks work on the whole GPU. Source: group_gemm.cuh and group_gemm_sm90.cuh (August 2026).
"""

from __future__ import annotations

from dataclasses import dataclass

from simlora.latency.families.base import ELEMENT_BYTES, CostedFamily
from simlora.latency.families.groups import Group
from simlora.latency.families.work import Cost, LoraWork
from simlora.latency.lora_kernels import row_tiles

TILE = 128
OLD_BLOCKS = 4
"""Persistent thread blocks of the SM80 kernel."""
FILLS = 4
"""Per projection: outputs zeroed and arguments prepared, twice."""


@dataclass(frozen=True)
class GroupedGemm(CostedFamily):
    """The time of a run is that of its tiles over the blocks that take them in turn."""

    blocks: int = OLD_BLOCKS
    """Thread blocks that work at a time."""
    block_flops: float = 1e12
    """FLOP/s of one of them."""

    def cost(self, group: Group, work: LoraWork) -> Cost:
        tiles = row_tiles(work.lora_tokens, work.adapters, TILE)
        elements = group.rank_elements * work.mix.max_rank  # one rank for all: padded to the largest
        return Cost(
            products=2 * group.slices,
            fills=FILLS * group.slices,
            tiles=tiles * 2 * group.slices,
            weight_bytes=tiles * elements * ELEMENT_BYTES,
            activation_bytes=work.lora_tokens * group.row_bytes,
        )

    def step_s(self, work: LoraWork) -> float:
        if work.adapters <= 0:
            return 0.0
        return super().step_s(work) + sum(self._tiles_s(group, group.work(work)) for group in self.groups)

    def _tiles_s(self, group: Group, work: LoraWork) -> float:
        """Tiles in turn: a shrink has one column of them (the rank), an expand one for each 128 outputs."""
        rows = row_tiles(work.lora_tokens, work.adapters, TILE)
        rank = -(-max(work.mix.max_rank, 1) // TILE) * TILE
        expand_elements = group.rank_elements - group.slice_columns
        columns = expand_elements / (group.slices * TILE)
        operations = 2.0 * rows * TILE * rank
        shrink = operations * group.slice_columns / min(float(self.blocks), rows)
        expand = operations * expand_elements / min(float(self.blocks), rows * max(columns, 1.0))
        return (shrink + expand) / self.block_flops
