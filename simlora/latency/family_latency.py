"""Steps of engines other than plain vLLM: other kernels, other graphs, another host, copies beside them."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from simlora.latency.calibration import Calibration
from simlora.latency.engine_latency import EngineLatency
from simlora.latency.families.work import LoraFamily, LoraWork
from simlora.latency.host import Host, LaunchHost, with_launches
from simlora.latency.inputs import EngineSettings
from simlora.latency.kernel_choice import KernelChoice
from simlora.latency.overlap import StepParts, assemble
from simlora.latency.profile import EngineProfile
from simlora.latency.step import AdapterMix, StepPlan, StepTiming
from simlora.scenario.gpu import GpuSpec
from simlora.scenario.lora_modules import ALL_LINEAR
from simlora.scenario.model import ModelSpec

NO_ADAPTERS = AdapterMix(0, 0, 0, 0)


class FamilyLatency(EngineLatency):
    """Prices what the engine's profile says. See EngineLatency for the arguments."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.kernels = KernelChoice(self)
        static = [name for name in self._static if name != "lora_kernels"]
        if "lora_kernels" in self.calibration.extrapolated:
            static.append("lora_kernels")
        self._engine_static = tuple(static)

    def price(self, plan: StepPlan) -> StepTiming:
        """Durations of the plan's first step and how they grow while it repeats. Raises ValueError for a plan with
        adapters but no mix, unless all of them compute at the slots' rank."""
        return assemble(self.parts(plan), self.profile.overlap)

    def price_table(self) -> None:
        """See StepLatency; steps of a family have no such table."""
        return None

    def parts(self, plan: StepPlan) -> StepParts:
        """See EngineLatency."""
        padded, graph = self._rows(plan)
        work = self._work(plan, padded, graph)
        gpu = self._gpu(plan, work, graph)
        slope_s = 0.0
        if not plan.prefills:
            slope_s = plan.decode_count * plan.emitted_per_step * self._decode_token_s
        if plan.copying:
            factor = self._slowdown(plan)
            gpu = (gpu[0] * factor, gpu[1] * factor, gpu[2] * factor, gpu[3])
            slope_s *= factor
        before_s, after_s, again_s, launch_s = (seconds * self._scale for seconds in self._host(plan, work, graph))
        return StepParts(
            before_s, after_s, again_s, launch_s, graph, self._tail_s,
            (self._loads_s(plan.loads) if plan.loads else 0.0) + plan.extra_s,
            gpu, slope_s, 1 if plan.prefills else plan.max_repeat, self._outside(plan, work),
        )  # fmt: skip

    def load_s(self, rank: int, tier: str) -> float:
        """See StepLatency; in the engine's own way."""
        if self.profile.measured_loads and self.disk_bytes_per_s is None:
            return super().load_s(rank, tier)
        key = (rank, tier)
        seconds = self._loads.get(key)
        if seconds is None:
            seconds = self._loads[key] = self.transfers.load_s(rank, tier)
        return seconds

    def decode_extra_s(self, batch: int, adapters: int, rank: int, other_rank: int) -> float:
        """See StepLatency; kernels that compute each adapter at its own rank do not mind the slots'."""
        if self.profile.decode_kernels == "padded":
            return super().decode_extra_s(batch, adapters, rank, other_rank)
        return 0.0

    def eager_launch_s(self, plan: StepPlan) -> float:
        """See EngineLatency."""
        work = self._work(plan, plan.num_tokens, False)
        return self._launch_s(plan, work, False) * self._scale

    def _rows(self, plan: StepPlan) -> tuple[int, bool]:
        """(rows that the step computes, whether one graph holds all of it)."""
        tokens = plan.num_tokens
        if self.profile.regimes:
            regime = self.regime(tokens, not plan.prefills)
            full = regime == "graph" and self.profile.full_decode_graphs
            return (tokens if regime == "eager" else self._pad[tokens]), full
        captured = self.graph_key(plan)
        return (tokens, False) if captured is None else (captured.tokens, True)

    def _work(self, plan: StepPlan, padded: int, graph: bool) -> LoraWork:
        longest = max((prompt.new_tokens for prompt in plan.prefills), default=1)
        rows = padded if graph else plan.num_requests
        return LoraWork(padded, plan.lora_tokens, plan.num_adapters, self._mix(plan), rows, plan.num_requests, longest)

    def _mix(self, plan: StepPlan) -> AdapterMix:
        if plan.mix is not None:
            return plan.mix
        if not plan.num_adapters or self.profile.decode_kernels is None:
            return NO_ADAPTERS
        if self.profile.needs_ranks:
            raise ValueError(f"{self.profile.kind}: a plan with adapters needs their ranks (StepPlan.mix)")
        rank = self.slot_rank
        return AdapterMix(plan.num_adapters * rank, plan.lora_tokens * rank, rank, 1)

    def _gpu(self, plan: StepPlan, work: LoraWork, graph: bool) -> tuple[float, float, float, float]:
        attention_s = plan.decode_context_tokens * self._decode_token_s + plan.decode_count * self._request_s
        if plan.prefills:
            attention_s += self._prefill_s(plan.prefills)
        lora_s, family = 0.0, self._family(plan, work)
        if family is not None:
            if work.adapters:
                lora_s = family.step_s(work)
            elif self._unused_runs(plan):
                lora_s = family.unused_s()
        collective_s = self._collective_s(work)
        scale = self._scale
        return self._dense_s(work.tokens, work.head_rows), attention_s, lora_s * scale, collective_s * scale

    def _family(self, plan: StepPlan, work: LoraWork) -> LoraFamily | None:
        return self.kernels.family(len(plan.prefills), work)

    def _collective_s(self, work: LoraWork) -> float:
        base = self.collectives
        if base.tp == 1:
            return 0.0
        seconds = base.step_s(work.tokens, work.adapters)
        if self.profile.exchange is None or not work.adapters:
            return seconds
        return seconds + base.model.num_hidden_layers * self.profile.exchange(base, self.adapter_modules, work)

    def _unused_runs(self, plan: StepPlan) -> bool:
        """LoRA kernels run though no adapter is in the step."""
        profile = self.profile
        if not (self.engine.enable_lora and profile.unused_runs):
            return False
        return not profile.regimes or self.regime(plan.num_tokens, not plan.prefills) != "eager"

    def _slowdown(self, plan: StepPlan) -> float:
        memory = self._host_memory
        return memory.arithmetic_slowdown if plan.prefills else memory.streaming_slowdown

    def _host(self, plan: StepPlan, work: LoraWork, graph: bool) -> tuple[float, float, float, float]:
        """Seconds before a read-back, after it, of a repetition, and of launching."""
        changed = plan.batch_changed or bool(plan.prefills)
        if self.profile.regimes:
            regime, host = self.regime(plan.num_tokens, not plan.prefills), self._regime_host
            sizes = regime, plan.num_tokens, plan.num_requests, plan.num_adapters
            cost, again = host.cost(*sizes, changed), host.cost(*sizes, changed=False)
            skip_s = plan.skipped * self.calibration.terms.host.parameters.skip_s
            return cost.before_s + skip_s, cost.after_s, again.before_s + skip_s, cost.launch_s
        launch_s = self._launch_s(plan, work, graph)
        first, again_s = (self._launch_host.prepare_s(plan.num_requests, change) for change in (changed, False))
        return first + launch_s, 0.0, again_s + launch_s, launch_s

    def _launch_s(self, plan: StepPlan, work: LoraWork, graph: bool) -> float:
        if self.profile.regimes:
            return self._regime_host.launch_s("eager", work.adapters)
        family = self._family(plan, work)
        if family is None:
            return self._launch_host.launch_s(graph, 0.0, False)
        return self._launch_host.launch_s(graph, family.launches(work), family.triton, family.views(work))

    @cached_property
    def _launch_host(self) -> LaunchHost:
        terms = self.calibration.terms
        return LaunchHost(terms.host.parameters, self._launches, self.profile, self.model.num_hidden_layers)

    @cached_property
    def _regime_host(self) -> Host:
        if self.profile.decode_kernels == "padded":
            return self.host
        one = LoraWork(1, 1, 1, AdapterMix(self.slot_rank, self.slot_rank, self.slot_rank, 1), 1, 1)
        family = self.kernels.family(0, one)
        launches = 0.0 if family is None else family.launches(one)
        tp = self.engine.tensor_parallel_size
        return with_launches(self.host, self.model, tp, self.slot_modules, launches)

    def _outside(self, plan: StepPlan, work: LoraWork) -> tuple[str, ...]:
        """Terms that the step stretches."""
        size = plan.num_tokens, plan.num_requests, plan.num_adapters
        names = [name for name in self._ranges.outside(*size) if name != "lora_kernels"]
        if work.adapters and self.kernels.stretched(len(plan.prefills), work):
            names.append("lora_kernels")
        if plan.decode_context_tokens > self._largest_context:
            names.append("attention")
        if not names:
            return self._engine_static
        return tuple(dict.fromkeys((*self._engine_static, *names)))


def step_latency(
    model: ModelSpec,
    gpu: GpuSpec,
    engine: EngineSettings,
    calibration: Calibration,
    profile: EngineProfile,
    step_scale: float = 1.0,
    slot_modules: tuple[str, ...] | None = None,
    adapter_modules: tuple[str, ...] = ALL_LINEAR,
    disk_bytes_per_s: float | None = None,
) -> EngineLatency:
    """Prices steps and loads of one engine. Arguments as in EngineLatency.

    Raises:
        ConfigError: the calibration lacks terms that the engine needs (choose_calibration adds them).
    """
    kind = FamilyLatency if profile.families else EngineLatency
    return kind(model, gpu, engine, calibration, profile, step_scale, slot_modules, adapter_modules, disk_bytes_per_s)
