"""Naive kernels: the base model once for all requests, then one pair of small GEMMs per adapter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from simlora.scenario.engines.naive import NaiveConfig, buffers
from simlora.scenario.engines.published_checks import check_slots

if TYPE_CHECKING:
    from simlora.scenario.root import Scenario


class SequentialConfig(NaiveConfig):
    """All adapters in one batch."""

    kind: Literal["sequential"] = Field(default="sequential", description="Serving engine")
    max_loras: int = buffers()

    def check(self, scenario: Scenario) -> None:
        super().check(scenario)
        check_slots(self, scenario)
