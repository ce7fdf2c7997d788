"""CPU time of engines other than vLLM: preparation as vLLM's, launches counted and priced one by one."""

from __future__ import annotations

from dataclasses import dataclass

from simlora.latency.calibration import HostParameters
from simlora.latency.calibration_engines import LaunchParameters
from simlora.latency.families.padded import LAUNCHES as VLLM_LAUNCHES
from simlora.latency.host import Host
from simlora.latency.profiles import EngineProfile
from simlora.latency.shapes import lora_linears
from simlora.scenario.model import ModelSpec


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


def vllm_host(host: Host, model: ModelSpec, tp: int, modules: tuple[str, ...], lora_launches: float) -> Host:
    """vLLM's host where its eager LoRA kernels are of another family: launching costs go by the number of kernels.

    lora_launches: kernels of a step with one adapter.
    """
    own = VLLM_LAUNCHES * max(len(lora_linears(model, tp, modules)), 1) * model.num_hidden_layers
    p = host.parameters
    factor = lora_launches / own
    parameters = p.model_copy(update={"eager_lora_layer_s": p.eager_lora_layer_s * factor})
    return Host(parameters, host.layers, host.enable_lora, host.full_graphs, host.registered, host.slots)
