"""Segmented kernels: the rows of one adapter in tiles, at its own rank (SGMV, MBGMM, csgmv, BGMV, MBGMV, simlora's).

A tile holds up to `rows` rows of one adapter; each tile reads the adapter's weights again, the first from memory and
the others from the cache, and a tile that is not full is multiplied all the same. BGMV and MBGMV are tiles of one row:
their traffic grows with tokens, not with adapters. Kernels for one rank are called once for each distinct rank.
"""

from __future__ import annotations

from dataclasses import dataclass

from simlora.latency.families.base import ELEMENT_BYTES, CostedFamily
from simlora.latency.families.groups import Group
from simlora.latency.families.work import Cost, LoraWork, seconds
from simlora.latency.lora_kernels import row_tiles

ONE_ROW = (1,)
THIRTY_TWO_ROWS = (32,)
"""CUTLASS tiles of Punica's expand (32 x 128 x 16), row blocks of S-LoRA's Triton prefill kernels."""
SIXTEEN_ROWS = (16,)
"""SGLang's default chunk (--max-lora-chunk-size 16)."""
SIMLORA_ROWS = (1, 16, 64)
"""Tile heights of this repository's kernels, which take what is fastest for the tokens and adapters of a step."""


def growing_chunk(tokens: int) -> int:
    """SGLang's chunk where --max-lora-chunk-size allows 128."""
    return 128 if tokens >= 256 else 32 if tokens >= 64 else 16


@dataclass(frozen=True)
class Tiled(CostedFamily):
    """See above."""

    rows: tuple[int, ...] = ONE_ROW
    """Rows of a full tile; of several heights the fastest is taken."""
    fused: bool = False
    """q, k and v share a launch, gate and up another."""
    fills_per_product: float = 0.0
    """Trivial kernels beside each that multiplies."""
    one_rank: bool = False
    """A call serves the adapters of one rank."""

    def cost(self, group: Group, work: LoraWork) -> Cost:
        if len(self.rows) == 1:
            return self.tiles_of(self.rows[0], group, work)
        costs = [self.tiles_of(rows, group, work) for rows in self.rows]
        return min(costs, key=lambda cost: seconds(cost, self.parameters, self.fill_s))

    def tiles_of(self, rows: int, group: Group, work: LoraWork) -> Cost:
        """Sizes with tiles of that height."""
        calls = max(work.mix.distinct_ranks, 1) if self.one_rank else 1
        kernels = 2 * (group.linears if self.fused else group.slices) * calls
        columns = (group.fused_columns if self.fused else group.slice_columns) * calls
        rank = work.mean_rank
        tiles = row_tiles(work.lora_tokens, work.adapters, rows)
        again = max(tiles - work.adapters, 0.0) * rank
        per_rank = group.rank_elements * ELEMENT_BYTES
        return Cost(
            products=kernels,
            fills=kernels * self.fills_per_product,
            depth=columns * rows,
            ranks=kernels * rank,
            tiles=tiles * kernels / calls,
            weight_bytes=work.mix.rank_sum * per_rank,
            repeated_bytes=again * per_rank,
            operations=tiles * rows * rank * group.rank_elements * 2.0,
            activation_bytes=work.lora_tokens * group.row_bytes,
        )
