"""vLLM's scheduler over LoRA kernels other than its own: its plans tell the ranks of their adapters."""

from __future__ import annotations

from simlora.engines.active_adapters import ActiveAdapters
from simlora.engines.decode_batch import DecodeBatch
from simlora.engines.request import Request
from simlora.engines.vllm.engine import Load, VllmEngine, VllmLimits
from simlora.engines.vllm.prefix_cache import PrefixCache
from simlora.latency.step import StepPlan
from simlora.memory.residents import AdapterTiers


class RankedVllm(VllmEngine):
    """Schedules exactly as VllmEngine; every plan carries a mix, and the largest own rank instead of the slots'."""

    def __init__(
        self,
        limits: VllmLimits,
        tiers: AdapterTiers | None,
        decodes: DecodeBatch | None = None,
        prefix_cache: PrefixCache | None = None,
        pads: bool = False,
    ) -> None:
        """pads: the kernels pad to the slots' rank all the same, and plans are VllmEngine's."""
        super().__init__(limits, tiers, decodes, prefix_cache)
        self.ranks = ActiveAdapters()
        """Adapters of the planned step."""
        self._pads = pads

    def form_step(self, now_s: float) -> StepPlan | None:
        plan = super().form_step(now_s)
        if self._pads or plan is None or not self.ranks.requests:
            return plan
        prompts = [(self.running[prefill.request], prefill.new_tokens) for prefill in plan.prefills]
        mix = self.ranks.mix(self.rank_tokens, prompts)
        return plan._replace(mix=mix, max_rank=mix.max_rank)

    def _start(self, request: Request, loads: list[Load], now_s: float) -> None:
        super()._start(request, loads, now_s)
        self.ranks.join(request)

    def _retire(self, step: int, now_s: float) -> None:
        before = len(self.leaving)
        super()._retire(step, now_s)
        for request in self.leaving[before:]:
            self.ranks.leave(request)

    def _preempt(self, request: Request, step: int, now_s: float) -> None:
        super()._preempt(request, step, now_s)
        self.ranks.leave(request)
