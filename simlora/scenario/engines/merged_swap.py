"""One adapter at a time, merged into the weights; a switch unmerges it and merges the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from simlora.scenario.base import WrongValueError
from simlora.scenario.engines.naive import KERNELS, NaiveConfig, switch_after

if TYPE_CHECKING:
    from simlora.scenario.root import Scenario


class MergedSwapConfig(NaiveConfig):
    """No LoRA kernels at all."""

    kind: Literal["merged-swap"] = Field(default="merged-swap", description="Serving engine")
    switch_after: int = switch_after(" (S-LoRA's `peft`: 30)")

    pins: ClassVar[bool] = False
    max_loras: ClassVar[int] = 1

    def check(self, scenario: Scenario) -> None:
        super().check(scenario)
        if self.kernels != KERNELS:
            raise WrongValueError("engine.kernels", self.kernels, "left out: merged weights need no LoRA kernels")
