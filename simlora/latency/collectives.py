"""All-reduces of tensor parallelism and sends between pipeline stages: a latency and a share of the link's rate.

Measured on 2 GPUs with NVLink; other numbers of GPUs and other links are marked.

What engines exchange between tensor-parallel GPUs for LoRA, beyond the base model's two all-reduces a layer.

With M LoRA rows, N GPUs and rank r, per layer: vLLM none (fully sharded: four small ones, collectives.py); SGLang an
all-reduce of [M, r] after each row-parallel shrink; LoRAX one for every projection and distinct rank; S-LoRA an
all-gather for the column-parallel projections of a block (3 M r for q, k, v) and an all-reduce of M r that is fused
with the base model's: 5 (N - 1) M r / N elements in an attention block.
"""

from __future__ import annotations

from dataclasses import dataclass

from simlora.latency.calibration import CollectiveParameters, SendParameters
from simlora.latency.families.work import LoraWork
from simlora.latency.profiles import Scheme
from simlora.scenario.model import ModelSpec

ALL_REDUCES_PER_LAYER = 2
SMALL_COLLECTIVES_PER_LAYER = 4
"""With fully sharded adapters: two all-gathers and two all-reduces of the shrink result."""
HOST_HOPS = 2
"""Without a link of their own, GPUs exchange through host memory: every byte crosses PCIe down and up again."""
HOST_LATENCY_FACTOR = 4.0
"""Start-up of such an exchange over one on NVLink: a copy each way and two flags in host memory. Assumed."""


@dataclass(frozen=True)
class Collectives:
    """Ring all-reduce: 2 (t - 1) / t of the bytes cross each link."""

    parameters: CollectiveParameters
    model: ModelSpec
    tp: int
    link_bytes_per_s: float
    fully_sharded: bool
    slot_rank: int
    through_host: bool = False
    """The GPUs have no link but PCIe."""
    sends: SendParameters | None = None
    """None: a send is priced as an all-reduce's way over the link."""

    def step_s(self, tokens: int, adapters: int) -> float:
        if self.tp == 1:
            return 0.0
        per_layer = ALL_REDUCES_PER_LAYER * self.reduce_s(tokens * self.model.hidden_size * self.model.dtype_bytes)
        if self.fully_sharded and adapters:
            per_layer += SMALL_COLLECTIVES_PER_LAYER * self.reduce_s(tokens * self.slot_rank * 4)
        return per_layer * self.model.num_hidden_layers

    def reduce_s(self, size_bytes: float) -> float:
        """An all-reduce of that many bytes."""
        return self.link_s(2.0 * (self.tp - 1) / self.tp * size_bytes)

    def link_s(self, crossing: float, starts: bool = True) -> float:
        """That many bytes over each GPU's link; starts: as an exchange of its own, not within another."""
        return self._over_link_s(crossing, self.parameters.latency_s if starts else 0.0, self.parameters.link_fraction)

    def send_s(self, size_bytes: float) -> float:
        """One tensor sent to a peer, until the peer has it."""
        if self.sends is None:
            return self.link_s(size_bytes)
        return self._over_link_s(size_bytes, self.sends.latency_s, self.sends.link_fraction)

    def _over_link_s(self, crossing: float, latency_s: float, link_fraction: float) -> float:
        seconds = crossing / (self.link_bytes_per_s * link_fraction)
        if self.through_host:
            return HOST_LATENCY_FACTOR * latency_s + HOST_HOPS * seconds
        return latency_s + seconds


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
