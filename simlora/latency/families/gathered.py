"""Padded batched products over adapters stacked in slots: every sequence gathers a copy of its adapter's weights at the
largest rank of the step, then torch.bmm multiplies. The weights are read, written and read again; prompts are padded to
the longest."""

from __future__ import annotations

from dataclasses import dataclass

from simlora.latency.families.base import ELEMENT_BYTES, CostedFamily
from simlora.latency.families.groups import Group
from simlora.latency.families.work import Cost, LoraWork, seconds

PASSES = 3
"""Gathering reads and writes the weights, multiplying reads them."""
GATHERS, ADDS = 2, 1
"""Per projection: A and B gathered, by one kernel each for all sequences; the result added."""


@dataclass(frozen=True)
class Gathered(CostedFamily):
    """Base tokens gather weights, too: the batch is one tensor."""

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
            fills=(GATHERS + ADDS) * group.slices,
            weight_bytes=PASSES * copies * elements * ELEMENT_BYTES,
            operations=2.0 * rows * elements,
            activation_bytes=rows * group.row_bytes,
        )
