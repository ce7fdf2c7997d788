"""Naive batching: the requests of one adapter at a time share a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from simlora.scenario.engines.naive import NaiveConfig, buffers, switch_after
from simlora.scenario.engines.published_checks import check_slots

if TYPE_CHECKING:
    from simlora.scenario.root import Scenario


class GroupedConfig(NaiveConfig):
    """One adapter per batch."""

    kind: Literal["grouped"] = Field(default="grouped", description="Serving engine")
    switch_after: int = switch_after()
    max_loras: int = buffers()

    def check(self, scenario: Scenario) -> None:
        super().check(scenario)
        check_slots(self, scenario)
