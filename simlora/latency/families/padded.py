"""vLLM's Triton kernels over slots, as a family: every adapter at the slots' rank, a grid over all slots."""

from __future__ import annotations

from dataclasses import dataclass

from simlora.latency.families.work import LoraWork
from simlora.latency.lora_kernels import LoraKernels

LAUNCHES = 3
"""Per fused linear: the shrink buffer zeroed, shrink, expand."""


@dataclass(frozen=True)
class Padded:
    """Own ranks do not matter."""

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
        return LAUNCHES * self._linears() if work.adapters > 0 else 0.0

    def views(self, work: LoraWork) -> float:
        """See the protocol."""
        return 0.0

    def _linears(self) -> int:
        return len(self.kernels.linears) * self.kernels.layers + (self.kernels.head is not None)
