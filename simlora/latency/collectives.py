"""All-reduces of tensor parallelism and sends between pipeline stages: a latency and a share of the link's rate.

Measured on 2 GPUs with NVLink; other numbers of GPUs and other links are marked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from simlora.latency.calibration import CollectiveParameters, SendParameters
from simlora.latency.families.work import LoraWork
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
ELEMENT_BYTES = 2

Exchange = Callable[[Collectives, tuple[str, ...], LoraWork], float]
"""(collectives, modules with LoRA, work) -> seconds in a layer of a step with adapters, on more than one GPU."""
