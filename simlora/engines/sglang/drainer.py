"""Draining: SGLang empties a slot for an adapter whose requests have waited too long.

Source: sgl-project/sglang, lora/lora_drainer.py (2026). Where the code takes any of several equals, the one with the
lowest id is taken here.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, nextafter

from simlora.engines.request import Request

TOLERANCE = 1.2
"""A draining adapter takes a request that asks for at most this many times its largest remaining output."""


class Drainer:
    """Which running adapters accept nobody new, and for whom. The base model (0) is an adapter like any other."""

    def __init__(self, slots: int, threshold_s: float) -> None:
        self.slots, self.threshold_s = slots, threshold_s
        self.draining: dict[int, int] = {}
        """Adapter -> the starving adapter that it makes room for."""
        self._remaining: dict[int, int] = {}

    def update(self, oldest_s: Mapping[int, float], remaining: dict[int, int], now_s: float) -> bool:
        """oldest_s: waiting adapter -> since when. remaining: running adapter -> largest remaining output in tokens.

        True when something changed, so that the next update may change more.
        """
        self._remaining = remaining
        before = len(self.draining)
        if len(remaining) >= self.slots:
            self._mark(oldest_s, remaining, now_s)
        marked = len(self.draining)
        self.draining = {adapter: why for adapter, why in self.draining.items() if adapter in remaining}
        return marked != before or len(self.draining) != marked

    def accepts(self, request: Request) -> bool:
        """Whether the request may join its adapter."""
        if request.adapter not in self.draining:
            return True
        return request.output_tokens <= self._remaining.get(request.adapter, 0) * TOLERANCE

    def next_s(self, oldest_s: Mapping[int, float], now_s: float) -> float:
        """When the next waiting adapter starves: the first instant after its deadline."""
        deadlines = (since_s + self.threshold_s for since_s in oldest_s.values())
        return nextafter(min((deadline for deadline in deadlines if deadline >= now_s), default=inf), inf)

    def _mark(self, oldest_s: Mapping[int, float], remaining: Mapping[int, int], now_s: float) -> None:
        served = set(self.draining.values())
        starving = sorted(
            (since_s, adapter)
            for adapter, since_s in oldest_s.items()
            if now_s > since_s + self.threshold_s and adapter not in served
        )
        eligible = sorted((left, adapter) for adapter, left in remaining.items() if adapter not in self.draining)
        for (_, starved), (_, adapter) in zip(starving, eligible, strict=False):
            self.draining[adapter] = starved
