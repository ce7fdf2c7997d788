"""CPU time of the engine process per step: by the way vLLM launches it, or by launches counted one by one."""

from __future__ import annotations

from dataclasses import dataclass

from simlora.latency.calibration import HostParameters, LaunchParameters
from simlora.latency.cuda_graphs import Regime
from simlora.latency.families.kernels import PADDED_LAUNCHES
from simlora.latency.profile import EngineProfile
from simlora.latency.shapes import lora_linears
from simlora.scenario.model import ModelSpec


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


@dataclass(frozen=True)
class LaunchHost:
    """Host time by launches. What only vLLM does (the mapping read back, lists of its host cache) is left out."""

    parameters: HostParameters
    launches: LaunchParameters
    profile: EngineProfile
    layers: int

    def prepare_s(self, requests: int, changed: bool) -> float:
        """Outputs of the step before, scheduling and inputs; more where the batch changes."""
        p = self.parameters
        return p.prepare_s + p.prepare_request_s * requests + (p.change_s if changed else 0.0)

    def launch_s(self, graph: bool, lora_launches: float, triton: bool, views: float = 0.0) -> float:
        """The forward pass launched: one graph, or every kernel by itself, with views taken for LoRA between them."""
        if graph:
            return self.parameters.launch_s
        base = (
            self.profile.torch_launches * self.launches.torch_s + self.profile.triton_launches * self.launches.triton_s
        )
        each = self.launches.triton_s if triton else self.launches.torch_s
        return self.parameters.launch_s + self.layers * base + lora_launches * each + views * self.launches.view_s


def with_launches(host: Host, model: ModelSpec, tp: int, modules: tuple[str, ...], lora_launches: float) -> Host:
    """The host where eager LoRA kernels are of another family: launching costs go by the number of kernels.

    lora_launches: kernels of a step with one adapter.
    """
    own = PADDED_LAUNCHES * max(len(lora_linears(model, tp, modules)), 1) * model.num_hidden_layers
    p = host.parameters
    factor = lora_launches / own
    parameters = p.model_copy(update={"eager_lora_layer_s": p.eager_lora_layer_s * factor})
    return Host(parameters, host.layers, host.enable_lora, host.full_graphs, host.registered, host.slots)
