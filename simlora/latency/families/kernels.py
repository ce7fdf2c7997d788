"""The families of LoRA kernels, and what each of them costs on a group of linears."""

from __future__ import annotations

from dataclasses import dataclass

from simlora.latency.families.work import ELEMENT_BYTES, Cost, CostedFamily, Group, LoraWork, seconds
from simlora.latency.lora_kernels import LoraKernels, row_tiles

PADDED_LAUNCHES = 3
"""Per fused linear: the shrink buffer zeroed, shrink, expand."""


@dataclass(frozen=True)
class Padded:
    """vLLM's Triton kernels over slots: every adapter at the slots' rank, a grid over all slots. Own ranks do not
    matter."""

    kernels: LoraKernels
    slot_rank: int | None
    """None: the largest rank of the step, where an engine has no slots of one rank."""
    triton: bool = True

    def step_s(self, work: LoraWork) -> float:
        """See the protocol."""
        if work.adapters <= 0:
            return 0.0
        rank = work.mix.max_rank if self.slot_rank is None else self.slot_rank
        return self.kernels.step_s(work.tokens, work.lora_tokens, work.adapters, rank, work.head_rows)

    def unused_s(self) -> float:
        """See the protocol."""
        p = self.kernels.parameters
        return self._linears() * (2.0 * p.launch_s + p.zero_s)

    def launches(self, work: LoraWork) -> float:
        """See the protocol."""
        return PADDED_LAUNCHES * self._linears() if work.adapters > 0 else 0.0

    def views(self, work: LoraWork) -> float:
        """See the protocol."""
        return 0.0

    def _linears(self) -> int:
        return len(self.kernels.linears) * self.kernels.layers + (self.kernels.head is not None)


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
    """Segmented kernels: the rows of one adapter in tiles, at its own rank (SGMV, MBGMM, csgmv, BGMV, MBGMV,
    simlora's).

    A tile holds up to `rows` rows of one adapter; each tile reads the adapter's weights again, the first from memory
    and the others from the cache, and a tile that is not full is multiplied all the same. BGMV and MBGMV are tiles of
    one row: their traffic grows with tokens, not with adapters. Kernels for one rank are called once for each distinct
    rank.
    """

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


@dataclass(frozen=True)
class Looped(CostedFamily):
    """A loop over adapters: rows selected, two small matrix products a projection, the result added, one adapter at a
    time.

    Launches grow with adapters; nothing is padded.
    """

    def cost(self, group: Group, work: LoraWork) -> Cost:
        return Cost(
            products=2 * group.slices * work.adapters,
            fills=(group.linears + group.slices) * work.adapters,
            weight_bytes=work.mix.rank_sum * group.rank_elements * ELEMENT_BYTES,
            operations=2.0 * work.mix.rank_tokens * group.rank_elements,
            activation_bytes=work.lora_tokens * group.row_bytes,
        )


PASSES = 3
"""Gathering reads and writes the weights, multiplying reads them."""
GATHERS, GATHER_ADDS = 2, 1
"""Per projection: A and B gathered, by one kernel each for all sequences; the result added."""


@dataclass(frozen=True)
class Gathered(CostedFamily):
    """Padded batched products over adapters stacked in slots: every sequence gathers a copy of its adapter's weights at
    the largest rank of the step, then torch.bmm multiplies. The weights are read, written and read again; prompts are
    padded to the longest.

    Base tokens gather weights, too: the batch is one tensor.
    """

    def cost(self, group: Group, work: LoraWork) -> Cost:
        """Of a copy for every token and one for every sequence, padded to the longest, the cheaper."""
        by_token = self._cost(group, work, work.tokens, 1)
        if work.longest <= 1:
            return by_token
        by_sequence = self._cost(group, work, work.sequences, work.longest)
        return min(by_token, by_sequence, key=lambda cost: seconds(cost, self.parameters, self.fill_s))

    def _cost(self, group: Group, work: LoraWork, copies: int, rows_each: int) -> Cost:
        elements, rows = group.rank_elements * work.mix.max_rank, copies * rows_each
        return Cost(
            products=2 * group.slices,
            fills=(GATHERS + GATHER_ADDS) * group.slices,
            weight_bytes=PASSES * copies * elements * ELEMENT_BYTES,
            operations=2.0 * rows * elements,
            activation_bytes=rows * group.row_bytes,
        )


COPIES = 2
"""Per run and projection: A and B copied."""
ROW_ADDS = 2
"""Per run and projection: the result scaled, and added."""
COPY_VIEWS = 6.0
"""Per run and projection: layer, projection and run selected, of A's batch and of B's."""
PADDED_VIEWS = 2.0
"""Where a rank is below the largest: both batches sliced to it."""
DECODE_VIEWS = 5.0
"""Per run and projection: rows of the output, run and rows of the product, and the sum written back to where it is: a
slice and a call that finds nothing to copy."""
INPUT_VIEWS = 4.0
"""Per run and input, which q, k and v share: run and rows of the padded batch; rows of the input, flattened."""
PROMPT_VIEWS = 13.0
"""Per run and projection: two offsets, the input flattened and sliced, A and B selected by three indices each, rows of
the output, the sum written back."""


def adapter_runs(requests: int, adapters: int) -> float:
    """Expected runs of neighbouring requests with one adapter: requests in random order, adapters with equal shares.

    Two neighbours share theirs with probability (n / a - 1) / (n - 1), so n requests have n - n / a + 1 runs.
    """
    if adapters <= 0 or requests <= 0:
        return 0.0
    return min(requests - requests / adapters + 1.0, float(requests))


@dataclass(frozen=True)
class Copied(CostedFamily):
    """Padded products over adapters that lie apart, as the padded baseline in S-LoRA's published code multiplies them.

    Every step builds its batch of weights anew: each run of neighbouring requests with one adapter copies its A and B
    into tensors of the step's largest rank. Decodes copy each run's inputs, too, multiply all runs by torch.bmm, then
    scale and add each run's result; prompts are multiplied run by run, unpadded. All of it is launched from Python,
    tensor by tensor.

    Source: github.com/S-LoRA/S-LoRA (Apache-2.0), LoraBmmInfer in slora/models/bmm/lora_bmm_infer.py; its runs are
    formed by ModelRpcServer.forward in slora/server/router/model_infer/model_rpc.py. Left out, as they change a step by
    a percent at most: memory handed back to the driver before every step, and prompts that wait for
    offsets on the GPU to be read back.

    See above.
    """

    def cost(self, group: Group, work: LoraWork) -> Cost:
        runs = adapter_runs(work.sequences, work.adapters)
        own_rank = work.mix.rank_sum / max(work.adapters, 1)
        padded_share = 1.0 - 1.0 / max(work.mix.distinct_ranks, 1)
        copies = COPY_VIEWS + PADDED_VIEWS * padded_share
        if work.longest > 1:
            rows, products = float(work.tokens), 2 * group.slices * runs
            fills = (COPIES + ROW_ADDS) * group.slices * runs
            views = (copies + PROMPT_VIEWS) * group.slices * runs
        else:  # every run is padded to the longest: taken as the mean
            rows, products = runs * -(-work.sequences // max(runs, 1.0)), 2.0 * group.slices
            fills = ((COPIES + ROW_ADDS) * group.slices + group.linears) * runs
            views = ((copies + DECODE_VIEWS) * group.slices + INPUT_VIEWS * group.linears) * runs
        # zeroed and multiplied at the largest rank, read and written at each adapter's own
        moved_ranks = 2.0 * (work.mix.max_rank + own_rank)
        return Cost(
            products=products,
            fills=fills,
            weight_bytes=runs * moved_ranks * group.rank_elements * ELEMENT_BYTES,
            operations=2.0 * rows * group.rank_elements * work.mix.max_rank,
            activation_bytes=rows * group.row_bytes,
            views=views,
        )


TILE = 128
OLD_BLOCKS = 4
"""Persistent thread blocks of the SM80 kernel."""
FILLS = 4
"""Per projection: outputs zeroed and arguments prepared, twice."""


@dataclass(frozen=True)
class GroupedGemm(CostedFamily):
    """FlashInfer's segment GEMM: CUTLASS grouped GEMM with tiles of 128 x 128, two runs a projection.

    A decode row fills 1 of a tile's 128 rows, a rank of 16 fills 16 of its 128 columns: all of it is multiplied. Before
    Hopper only 4 thread blocks work on the whole GPU. Source: group_gemm.cuh and group_gemm_sm90.cuh (August 2026).

    The time of a run is that of its tiles over the blocks that take them in turn.
    """

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
