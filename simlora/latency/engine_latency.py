"""What engines ask of the latency model besides the price of a step: copies on side streams, merging, stages."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

from simlora.errors import ConfigError
from simlora.latency.calibration import Calibration, HostMemoryParameters, LaunchParameters
from simlora.latency.cuda_graphs import Captured
from simlora.latency.inputs import EngineSettings
from simlora.latency.loads import Transfers
from simlora.latency.operators import merge_s
from simlora.latency.overlap import PipelineTiming, StepParts, assemble, share_of
from simlora.latency.profile import EngineProfile
from simlora.latency.step import StepPlan
from simlora.latency.step_latency import StepLatency
from simlora.scenario.gpu import GpuSpec
from simlora.scenario.lora_modules import ALL_LINEAR
from simlora.scenario.model import ModelSpec, stage_layers

TENSORS = 2
"""Hidden states and residual go from stage to stage, each by a send of its own. Source: vLLM's IntermediateTensors of
Llama and GroupCoordinator.send_tensor_dict, whose message of names and shapes over the CPU is left out."""
CAPTURE_PASSES = 2
"""A graph is captured by running the step once to warm up and once to record it."""


class EngineLatency(StepLatency):
    """StepLatency of any kind of engine."""

    def __init__(
        self,
        model: ModelSpec,
        gpu: GpuSpec,
        engine: EngineSettings,
        calibration: Calibration,
        profile: EngineProfile,
        step_scale: float = 1.0,
        slot_modules: tuple[str, ...] | None = None,
        adapter_modules: tuple[str, ...] = ALL_LINEAR,
        disk_bytes_per_s: float | None = None,
    ) -> None:
        """disk_bytes_per_s: the scenario's disk; None: reads take what the calibration measured. The other arguments
        as in StepLatency."""
        if profile.modules is not None:
            slot_modules = adapter_modules = profile.modules
        super().__init__(model, gpu, engine, calibration, profile, step_scale, slot_modules, adapter_modules)
        self.disk_bytes_per_s = disk_bytes_per_s
        if disk_bytes_per_s is not None:
            self._read_at_most(disk_bytes_per_s / engine.tensor_parallel_size)

    def _read_at_most(self, bytes_per_s: float) -> None:
        """Every worker reads the whole file, so they share the disk; one faster than reading and packing is hidden."""
        parameters = self.copies.parameters
        if bytes_per_s < parameters.disk_bytes_per_s:
            slower = parameters.model_copy(update={"disk_bytes_per_s": bytes_per_s})
            self.copies = replace(self.copies, parameters=slower)

    def scaled(self, factor: float) -> EngineLatency:
        """See StepLatency."""
        return self.with_calibration(self.calibration, self._scale * factor)

    def with_calibration(self, calibration: Calibration, step_scale: float) -> EngineLatency:
        """The same engine, priced by another calibration."""
        modules = self.slot_modules, self.adapter_modules
        parts = self.model, self.gpu, self.engine, calibration, self.profile
        return type(self)(*parts, step_scale, *modules, self.disk_bytes_per_s)

    @cached_property
    def transfers(self) -> Transfers:
        """Copies of adapters to the GPU: their links, legs and bytes. Raises ConfigError without calibrated terms."""
        copies, engine = self.calibration.terms.copies.parameters, self.engine
        return Transfers(
            copies=copies,
            memory=self._host_memory,
            model=self.model,
            tp=engine.tensor_parallel_size,
            modules=self.adapter_modules,
            sharded=self.profile.sharded,
            recipes=self.profile.recipes(self.model, self.adapter_modules, copies, self._launches),
            slot_rank=engine.max_lora_rank,
            disk_bytes_per_s=self.disk_bytes_per_s,
            scale=self._scale,
        )

    def merge_s(self, rank: int, old_rank: int | None = None) -> float:
        """Seconds on the GPU of taking an adapter of old_rank out of the weights and merging one of `rank` into them.

        old_rank: None for the same rank, 0 where the weights are the base model's; rank 0: back to the base model.
        """
        pairs = (rank, rank if old_rank is None else old_rank)
        operators, tp = self.calibration.terms.operators.parameters, self.engine.tensor_parallel_size
        return sum(merge_s(self.model, tp, self.adapter_modules, each, operators) for each in pairs) * self._scale

    def price_stages(self, plan: StepPlan) -> PipelineTiming:
        """The step's parts shared out by layers over the stages of a pipeline; one stage is the step itself."""
        stages = self.engine.pipeline_parallel_size
        if stages == 1:
            return PipelineTiming((self.price(plan),), 0.0)
        layers = self.model.num_hidden_layers
        parts, overlap = self.parts(plan), self.profile.overlap
        head_s = min(self.operators.head_s(plan.num_requests) * self._scale, parts.gpu[0])
        fixed_s = self.calibration.terms.host.parameters.launch_s * self._scale
        split = tuple(
            share_of(parts, count / layers, (head_s, head_s if index == stages - 1 else 0.0), fixed_s, index == 0)
            for index, count in enumerate(stage_layers(layers, stages))
        )
        return PipelineTiming(tuple(assemble(each, overlap) for each in split), self.transfer_s(plan.num_tokens))

    def transfer_s(self, tokens: int) -> float:
        """Seconds of sending the tensors of that many tokens from a GPU to its peer in the next stage."""
        model = self.model
        return TENSORS * self.collectives.send_s(tokens * model.hidden_size * model.dtype_bytes) * self._scale

    def graph_key(self, plan: StepPlan) -> Captured | None:
        """The CUDA graph that holds the whole step; None: none does."""
        return None if self.profile.graph is None else self.profile.graph(plan)

    def lazy_capture_s(self, plan: StepPlan) -> float:
        """Seconds of capturing the step's graph when it first comes; 0 for graphs of the start. Assumed: two eager
        passes."""
        graph = self.graph_key(plan)
        if graph is None or graph.at_start:
            return 0.0
        timing = self.price(plan)
        return CAPTURE_PASSES * (timing.gpu_s + self.eager_launch_s(plan))

    def eager_launch_s(self, plan: StepPlan) -> float:
        """Seconds of launching the step kernel by kernel."""
        return self.host.launch_s("eager", plan.num_adapters) * self._scale

    def parts(self, plan: StepPlan) -> StepParts:
        """The step's durations before they are put together."""
        timing = self.price(plan)
        decode_only = not plan.prefills
        regime = self.regime(plan.num_tokens, decode_only)
        cost = self.host.cost(
            regime, plan.num_tokens, plan.num_requests, plan.num_adapters, plan.batch_changed or not decode_only
        )
        again = self.host.cost(regime, plan.num_tokens, plan.num_requests, plan.num_adapters, changed=False)
        skip_s, scale = plan.skipped * self._skip_s, self._scale
        return StepParts(
            before_s=cost.before_s * scale + skip_s,
            after_s=cost.after_s * scale,
            again_s=again.before_s * scale + skip_s,
            launch_s=cost.launch_s * scale,
            graph=regime == "graph" and self.profile.full_decode_graphs,
            tail_s=self._tail_s,
            load_s=timing.load_s,
            gpu=(timing.base_s, timing.attention_s, timing.lora_s, timing.collective_s),
            slope_s=timing.slope_s
            if plan.prefills
            else plan.decode_count * plan.emitted_per_step * self._decode_token_s,
            valid_steps=1 if plan.prefills else plan.max_repeat,
            extrapolated=timing.extrapolated,
        )

    @property
    def _launches(self) -> LaunchParameters:
        parameters: LaunchParameters = self._optional("launches")
        return parameters

    @property
    def _host_memory(self) -> HostMemoryParameters:
        parameters: HostMemoryParameters = self._optional("host_memory")
        return parameters

    def _optional(self, name: str) -> Any:
        term = getattr(self.calibration.terms, name)
        if term is None:
            raise ConfigError("<arguments>", "calibration", self.calibration.id, f"one with the term {name}")
        return term.parameters
