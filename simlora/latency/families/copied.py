"""Padded products over adapters that lie apart, as the padded baseline in S-LoRA's published code multiplies them.

Every step builds its batch of weights anew: each run of neighbouring requests with one adapter copies its A and B into
tensors of the step's largest rank. Decodes copy each run's inputs, too, multiply all runs by torch.bmm, then scale and
add each run's result; prompts are multiplied run by run, unpadded. All of it is launched from Python, tensor by tensor.

Source: github.com/S-LoRA/S-LoRA (Apache-2.0), LoraBmmInfer in slora/models/bmm/lora_bmm_infer.py; its runs are formed
by ModelRpcServer.forward in slora/server/router/model_infer/model_rpc.py. Left out, as
they change a step by a percent at most: memory handed back to the driver before every step, and prompts that wait for
offsets on the GPU to be read back.
"""

from __future__ import annotations

from dataclasses import dataclass

from simlora.latency.families.base import ELEMENT_BYTES, CostedFamily
from simlora.latency.families.groups import Group
from simlora.latency.families.work import Cost, LoraWork

COPIES = 2
"""Per run and projection: A and B copied."""
ADDS = 2
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
    """See above."""

    def cost(self, group: Group, work: LoraWork) -> Cost:
        runs = adapter_runs(work.sequences, work.adapters)
        own_rank = work.mix.rank_sum / max(work.adapters, 1)
        padded_share = 1.0 - 1.0 / max(work.mix.distinct_ranks, 1)
        copies = COPY_VIEWS + PADDED_VIEWS * padded_share
        if work.longest > 1:
            rows, products = float(work.tokens), 2 * group.slices * runs
            fills = (COPIES + ADDS) * group.slices * runs
            views = (copies + PROMPT_VIEWS) * group.slices * runs
        else:  # every run is padded to the longest: taken as the mean
            rows, products = runs * -(-work.sequences // max(runs, 1.0)), 2.0 * group.slices
            fills = ((COPIES + ADDS) * group.slices + group.linears) * runs
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
