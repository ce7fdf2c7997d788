"""Which family serves a step: by engine, by prompts or decodes, by rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simlora.latency.families.choice import Known, Layout, make_family
from simlora.latency.families.kernels import Padded
from simlora.latency.families.work import LoraFamily, LoraWork
from simlora.latency.inputs import ArtifactSwitch
from simlora.latency.lora_kernels import LoraKernels
from simlora.latency.profiles import slora_segmented
from simlora.latency.shapes import Linear, lora_linears

if TYPE_CHECKING:
    from simlora.latency.engine_latency import EngineLatency

SLOTTED = ("vllm", "sglang")
"""Kinds whose slots have one rank."""
LORAX_LARGEST_RANK = 128
"""Per GPU; above it LoRAX loops over adapters. Above it on all GPUs together its decodes take SGMV."""


@dataclass(frozen=True)
class KernelChoice:
    """Families of one engine, made when they are first asked for."""

    latency: EngineLatency
    artifact: bool
    _known: dict[str, Known] = field(default_factory=dict)

    @classmethod
    def of(cls, latency: EngineLatency) -> KernelChoice:
        engine = latency.engine
        return cls(latency, isinstance(engine, ArtifactSwitch) and engine.artifact)

    def family(self, prompts: int, work: LoraWork) -> LoraFamily | None:
        """The kernels of a step with that many prompts; None: it has none."""
        name = self._name(prompts, work)
        return None if name is None else self._get(name).kernels

    def stretched(self, prompts: int, work: LoraWork) -> bool:
        """The step lies outside what was measured of its family, or nothing was."""
        name = self._name(prompts, work)
        if name is None:
            return False
        term = self._get(name).term
        if term.basis != "measured":
            return True
        values = {
            "tokens": work.tokens,
            "adapters": work.adapters,
            "max_rank": work.mix.max_rank,
            "max_lora_rank": self.latency.slot_rank,
            "max_loras": self.latency.engine.max_loras,
            "tensor_parallel_size": self.latency.engine.tensor_parallel_size,
        }
        bounds = [(values[name], *limits) for name, limits in term.measured.items() if name in values]
        return any(not low <= value <= high for value, low, high in bounds)

    def _name(self, prompts: int, work: LoraWork) -> str | None:
        profile = self.latency.profile
        if not prompts:
            return self._lorax_decode(work) if profile.one_rank else profile.decode_kernels
        if profile.prefill_kernels == "mbgmm" and self.artifact:
            segmented = slora_segmented(prompts, work.longest, work.mix.max_rank)
            return profile.prefill_kernels if segmented else profile.decode_kernels
        return profile.prefill_kernels

    def _lorax_decode(self, work: LoraWork) -> str | None:
        profile, rank = self.latency.profile, work.mix.max_rank
        if rank / self.latency.engine.tensor_parallel_size > LORAX_LARGEST_RANK:
            return "loop"
        return profile.prefill_kernels if rank > LORAX_LARGEST_RANK else profile.decode_kernels

    def _get(self, name: str) -> Known:
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = self._make(name)
        return found

    def _make(self, name: str) -> Known:
        latency, engine = self.latency, self.latency.engine
        tp, calibration, profile = engine.tensor_parallel_size, latency.calibration, latency.profile
        if name == "padded":
            return self._padded()
        layout = Layout(latency.model, tp, latency.slot_modules, profile.sharded, profile.kind in SLOTTED)
        return make_family(name, calibration, layout, profile.one_rank)

    def _padded(self) -> Known:
        """vLLM's kernels, over the engine's slots or, where it has none, over the adapters of the step."""
        latency, slotted = self.latency, self.latency.profile.kind in SLOTTED
        model, modules, engine = latency.model, latency.slot_modules, latency.engine
        term = latency.calibration.terms.lora_kernels
        kernels = LoraKernels(
            parameters=term.parameters,
            linears=lora_linears(model, engine.tensor_parallel_size, modules),
            layers=model.num_hidden_layers,
            head=Linear("lm_head", model.hidden_size, (model.vocab_size,)) if "lm_head" in modules else None,
            experts=(model.num_experts, model.num_experts_per_tok),
            max_loras=engine.max_loras,
            specialize=engine.specialize_active_lora or not slotted,
        )
        if latency.profile.kind == "vllm":
            kernels = latency.lora
        return Known(Padded(kernels, latency.slot_rank if slotted else None), term)
