"""Which family serves a step, and where it was measured."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from simlora.latency.engine_latency import EngineLatency
from simlora.latency.families.choice import Known, Layout, make_family
from simlora.latency.families.kernels import Padded
from simlora.latency.families.work import LoraFamily, LoraWork


@dataclass(frozen=True)
class KernelChoice:
    """Families of one engine, made when they are first asked for."""

    latency: EngineLatency
    _known: dict[str, Known] = field(default_factory=dict)

    def family(self, prompts: int, work: LoraWork) -> LoraFamily | None:
        """The kernels of a step with that many prompts; None: it has none."""
        name = self.latency.profile.kernels(prompts, work)
        return None if name is None else self._get(name).kernels

    def stretched(self, prompts: int, work: LoraWork) -> bool:
        """The step lies outside what was measured of its family, or nothing was."""
        name = self.latency.profile.kernels(prompts, work)
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

    def _get(self, name: str) -> Known:
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = self._make(name)
        return found

    def _make(self, name: str) -> Known:
        latency, profile = self.latency, self.latency.profile
        if name == "padded":
            return self._padded()
        tp = latency.engine.tensor_parallel_size
        layout = Layout(latency.model, tp, latency.slot_modules, profile.sharded, profile.slotted)
        return make_family(name, latency.calibration, layout, profile.one_rank)

    def _padded(self) -> Known:
        """The padded kernels over the engine's slots or, where it has none, over the adapters of the step."""
        latency, slotted = self.latency, self.latency.profile.slotted
        kernels = latency.lora if slotted else replace(latency.lora, specialize=True)
        return Known(Padded(kernels, latency.slot_rank if slotted else None), latency.calibration.terms.lora_kernels)
