"""One adapter at a time, merged into the weights; a switch unmerges it and merges the next."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from simlora.scenario.engines.naive import NaiveConfig, switch_after


class MergedSwapConfig(NaiveConfig):
    """No LoRA kernels at all."""

    kind: Literal["merged-swap"] = Field(default="merged-swap", description="Serving engine")
    switch_after: int = switch_after(" (S-LoRA's `peft`: 30)")

    pins: ClassVar[bool] = False
    max_loras: ClassVar[int] = 1
