"""What engines exchange between tensor-parallel GPUs for LoRA, beyond the base model's two all-reduces a layer.

With M LoRA rows, N GPUs and rank r, per layer: vLLM none (fully sharded: four small ones, collectives.py); SGLang an
all-reduce of [M, r] after each row-parallel shrink; LoRAX one for every projection and distinct rank; S-LoRA an
all-gather for the column-parallel projections of a block (3 M r for q, k, v) and an all-reduce of M r that is fused
with the base model's: 5 (N - 1) M r / N elements in an attention block.
"""

from __future__ import annotations

from dataclasses import dataclass

from simlora.latency.collectives import Collectives
from simlora.latency.families.work import LoraWork
from simlora.latency.profiles import Scheme

ROW_MODULES = ("o_proj", "down_proj")
COLUMN_MODULES = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
BYTES = 2


@dataclass(frozen=True)
class EngineCollectives:
    """Collectives of one engine."""

    base: Collectives
    scheme: Scheme
    modules: tuple[str, ...]
    """Modules with LoRA."""

    def step_s(self, work: LoraWork) -> float:
        """Seconds of a step; 0 on one GPU."""
        tp = self.base.tp
        if tp == 1:
            return 0.0
        return self.base.step_s(work.tokens, work.adapters) + self.base.model.num_hidden_layers * self._layer_s(work)

    def _layer_s(self, work: LoraWork) -> float:
        """What LoRA adds in a layer."""
        if not work.adapters or self.scheme in ("none", "fully-sharded"):
            return 0.0
        rows = sum(module in self.modules for module in ROW_MODULES)
        columns = sum(module in self.modules for module in COLUMN_MODULES)
        if self.scheme == "sglang":
            return rows * self.base.reduce_s(work.tokens * self.base.slot_rank * BYTES)
        rank_bytes = work.mix.rank_tokens * BYTES
        if self.scheme == "lorax":
            calls = (rows + columns) * max(work.mix.distinct_ranks, 1)
            return calls * self.base.reduce_s(rank_bytes / max(work.mix.distinct_ranks, 1))
        return self._slora_s(rank_bytes)

    def _slora_s(self, rank_bytes: float) -> float:
        """One gather for each block's column-parallel projections; the reduction rides with the base model's."""
        share = (self.base.tp - 1) / self.base.tp
        seconds = 0.0
        for columns, row in ((COLUMN_MODULES[:3], "o_proj"), (COLUMN_MODULES[3:], "down_proj")):
            gathered = sum(module in self.modules for module in columns)
            reduced = 2 if row in self.modules else 0
            if gathered or reduced:
                seconds += self.base.link_s((gathered + reduced) * share * rank_bytes, bool(gathered))
        return seconds
