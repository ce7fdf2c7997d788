"""The naive baselines: whole prompts, no graphs, two GEMMs per adapter, loads that block.

grouped: the requests of one adapter at a time share a step. sequential: the base model once for all requests, then one
pair of small GEMMs per adapter. merged-swap: one adapter at a time, merged into the weights; a switch unmerges it and
merges the next.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import Field

from simlora.scenario.base import WrongValueError, auto
from simlora.scenario.engines.base import PublishedEngine
from simlora.scenario.engines.published_checks import (
    DEFAULT_STEP_TOKENS,
    check_blocking_loads,
    check_common,
    check_host_memory,
    check_prefill_limit,
    check_slots,
)
from simlora.scenario.sections import Sections

KERNELS = "loop"
"""Two small GEMMs per adapter and projection."""


class NaiveConfig(PublishedEngine):
    """A baseline that the field measures itself against."""

    max_num_seqs: int = Field(default=256, ge=1, le=65_536, description="Requests that run together")
    max_num_batched_tokens: int = auto("Tokens in one step; null: 8192, at least max_model_len", ge=1)
    block_size: Literal[16, 32, 64] = Field(default=16, description="Tokens in a KV block")
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1, description="Share of GPU memory the engine may use")

    pins: ClassVar[bool] = True
    """Adapters can be pinned."""
    max_lora_rank: ClassVar[int] = 256
    async_scheduling: ClassVar[bool] = False
    enable_chunked_prefill: ClassVar[bool] = False
    enforce_eager: ClassVar[bool] = True
    eviction: ClassVar[str] = "lru"
    max_cpu_loras: ClassVar[int] = 1 << 20

    def resolved(self, scenario: Sections) -> Self:
        engine = self.with_common(scenario, kernels=KERNELS)
        return engine.filled(max_num_batched_tokens=max(DEFAULT_STEP_TOKENS, engine.max_model_len))

    def check(self, scenario: Sections) -> None:
        check_common(self, scenario, pins=self.pins)
        check_blocking_loads(self)
        check_prefill_limit(self, "max_num_batched_tokens")
        if self.enable_lora:
            check_host_memory(scenario, scenario.adapter_modules, self.tensor_parallel_size)


def switch_after(more: str = "") -> Any:
    """The field of engines that serve one adapter at a time."""
    text = f"Waiting requests of other adapters that close the batch to newcomers{more}"
    return Field(default=30, ge=1, le=1_000_000, description=text)


def buffers() -> Any:
    """The field of engines that keep several adapters."""
    return Field(default=32, ge=1, le=4096, description="Adapters that stay on the GPU")


class GroupedConfig(NaiveConfig):
    """One adapter per batch."""

    spec: ClassVar[str] = "simlora.engines.baselines.spec:GROUPED"
    kind: Literal["grouped"] = Field(default="grouped", description="Serving engine")
    switch_after: int = switch_after()
    max_loras: int = buffers()

    def check(self, scenario: Sections) -> None:
        super().check(scenario)
        check_slots(self, scenario)


class MergedSwapConfig(NaiveConfig):
    """No LoRA kernels at all."""

    spec: ClassVar[str] = "simlora.engines.baselines.spec:MERGED_SWAP"
    kind: Literal["merged-swap"] = Field(default="merged-swap", description="Serving engine")
    switch_after: int = switch_after(" (S-LoRA's `peft`: 30)")

    pins: ClassVar[bool] = False
    max_loras: ClassVar[int] = 1

    def check(self, scenario: Sections) -> None:
        super().check(scenario)
        if self.kernels != KERNELS:
            raise WrongValueError("engine.kernels", self.kernels, "left out: merged weights need no LoRA kernels")


class SequentialConfig(NaiveConfig):
    """All adapters in one batch."""

    spec: ClassVar[str] = "simlora.engines.baselines.spec:SEQUENTIAL"
    kind: Literal["sequential"] = Field(default="sequential", description="Serving engine")
    max_loras: int = buffers()

    def check(self, scenario: Sections) -> None:
        super().check(scenario)
        check_slots(self, scenario)
