"""A loop over adapters: rows selected, two small matrix products a projection, the result added, one adapter at a
time."""

from __future__ import annotations

from dataclasses import dataclass

from simlora.latency.families.base import ELEMENT_BYTES, CostedFamily
from simlora.latency.families.groups import Group
from simlora.latency.families.work import Cost, LoraWork


@dataclass(frozen=True)
class Looped(CostedFamily):
    """Launches grow with adapters; nothing is padded."""

    def cost(self, group: Group, work: LoraWork) -> Cost:
        return Cost(
            products=2 * group.slices * work.adapters,
            fills=(group.linears + group.slices) * work.adapters,
            weight_bytes=work.mix.rank_sum * group.rank_elements * ELEMENT_BYTES,
            operations=2.0 * work.mix.rank_tokens * group.rank_elements,
            activation_bytes=work.lora_tokens * group.row_bytes,
        )
