"""One adapter at a time, merged into the weights: no LoRA kernels, but a switch has to unmerge and merge.

Batches are those of GroupedEngine. Before the first step of a batch of another adapter, that adapter is copied to the
GPU and the weights are changed, while nothing else runs. This is how PEFT serves, and what S-LoRA's scheduler `peft`
does (S-LoRA c1ddf48, peft_req_queue.py): it leaves an adapter when its requests have drained, or when 30 requests of
others have waited; here running requests finish first, since their KV cache belongs to the merged weights.
"""

from __future__ import annotations

from collections.abc import Callable

from simlora.engines.baselines.base import BaselineLimits
from simlora.engines.baselines.grouped import GroupedEngine
from simlora.engines.request import Request
from simlora.memory.residents import ResidentSet


class MergedSwapEngine(GroupedEngine):
    """A grouped engine whose switches cost a merge."""

    def __init__(self, limits: BaselineLimits, slots: ResidentSet | None, merge_s: Callable[[int, int], float]) -> None:
        """merge_s(rank, old rank): seconds to unmerge an adapter of the old rank and merge one of the new; 0: none."""
        super().__init__(limits, slots)
        self._merge_s = merge_s
        self._merged = 0, 0
        """The merged adapter and its rank; 0 for the plain weights."""

    def switch_s(self, chunks: list[tuple[Request, int]]) -> float:
        adapter, rank = chunks[0][0].adapter, chunks[0][0].rank
        old, old_rank = self._merged
        if adapter == old:
            return 0.0
        self._merged = adapter, rank
        return self._merge_s(rank, old_rank)
