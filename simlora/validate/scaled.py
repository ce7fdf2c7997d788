"""Step times made shorter or longer by a factor: how sensitive a metric is to them."""

from __future__ import annotations

from typing import Any

from simlora.latency.model import StepLatency
from simlora.latency.step import StepPlan, StepTiming

_SECONDS = (
    "host_s",
    "load_s",
    "base_s",
    "attention_s",
    "lora_s",
    "collective_s",
    "slope_s",
    "tail_s",
    "sync_s",
)


class ScaledLatency:
    """A StepLatency whose steps and loads take `factor` times as long; the front end stays as it is."""

    def __init__(self, latency: StepLatency, factor: float) -> None:
        self._latency, self._factor = latency, factor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._latency, name)

    def price(self, plan: StepPlan) -> StepTiming:
        timing = self._latency.price(plan)
        changes = {name: getattr(timing, name) * self._factor for name in _SECONDS}
        if timing.repeat_host_s >= 0:
            changes["repeat_host_s"] = timing.repeat_host_s * self._factor
        return timing._replace(**changes)

    def load_s(self, rank: int, tier: str) -> float:
        return self._latency.load_s(rank, tier) * self._factor


def scaled(latency: StepLatency, factor: float) -> StepLatency:
    """The same latencies with every step time multiplied by factor."""
    if factor == 1.0:
        return latency
    own = getattr(latency, "scaled", None)
    return own(factor) if own else ScaledLatency(latency, factor)  # type: ignore[return-value]
