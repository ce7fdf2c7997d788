"""CPU time of the engine process per step, by the way the step is launched."""

from __future__ import annotations

from dataclasses import dataclass

from simlora.latency.calibration import HostParameters
from simlora.latency.graphs import Regime


@dataclass(frozen=True)
class HostCost:
    """Host time of one step: before the read-back from the GPU, and after it (0 where nothing is read back)."""

    before_s: float
    after_s: float
    launch_s: float
    """Part of the time in which kernels are launched: the last part of either of the two."""


@dataclass(frozen=True)
class Host:
    """Host terms of one engine configuration."""

    parameters: HostParameters
    layers: int
    enable_lora: bool
    full_graphs: bool = True
    """Steps of decodes alone replay one graph; else graph pieces, with attention between them."""
    registered: int = 0
    """Adapters in the host cache, taken to be full."""
    slots: int = 0

    def cost(self, regime: Regime, tokens: int, requests: int, adapters: int, changed: bool) -> HostCost:
        """A LoRA engine with a changed mapping of tokens to adapters rebuilds it and waits for the GPU."""
        p = self.parameters
        prepare = p.prepare_s + p.prepare_request_s * requests + p.registered_s * adapters * self.registered
        if changed:
            prepare += p.change_s
        launch = self.launch_s(regime, adapters)
        if not (self.enable_lora and changed):
            return HostCost(prepare + launch, 0.0, launch)
        per_token = p.metadata_token_s + p.metadata_slot_s * self.slots
        return HostCost(prepare, p.metadata_s + per_token * tokens + launch, launch)

    def launch_s(self, regime: Regime, adapters: int) -> float:
        """Seconds of launching: what lies outside the layers, and the layers as the regime launches them."""
        p = self.parameters
        if regime == "graph" and self.full_graphs:
            return p.launch_s
        if regime != "eager":
            return p.launch_s + p.piecewise_layer_s * self.layers
        per_layer = p.eager_layer_s
        if self.enable_lora:
            per_layer += p.eager_lora_layer_s if adapters else p.eager_lora_unused_layer_s
        return p.launch_s + per_layer * self.layers
