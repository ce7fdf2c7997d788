"""Punica (arXiv:2310.18547; code 591b598, January 2024): one prompt a step with all decodes, one rank, SGMV."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field

from simlora.scenario.base import WrongValueError
from simlora.scenario.engines.base import PublishedEngine
from simlora.scenario.engines.published_checks import (
    check_common,
    check_host_memory,
    check_one_gpu,
    check_ranks,
    used_ranks,
)
from simlora.scenario.lora_modules import ALL_LINEAR
from simlora.scenario.sections import Sections

PUNICA_RANKS = (16, 32, 64, 96, 128)
"""Ranks that SGMV's shrink is compiled for."""


class PunicaConfig(PublishedEngine):
    """One Punica GPU."""

    spec: ClassVar[str] = "simlora.engines.punica.spec:SPEC"
    kind: Literal["punica"] = Field(default="punica", description="Serving engine")
    max_batch_size: int = Field(default=32, ge=1, le=65_536, description="Requests that run together")
    block_size: Literal[16, 32, 64] = Field(default=16, description="Tokens in a KV page")
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1, description="Share of GPU memory the engine may use")
    max_loras: int = Field(default=32, ge=1, le=4096, description="Preallocated adapter buffers on the GPU")

    max_lora_rank: ClassVar[int] = 128
    async_scheduling: ClassVar[bool] = False
    enable_chunked_prefill: ClassVar[bool] = False
    enforce_eager: ClassVar[bool] = True
    eviction: ClassVar[str] = "lru"
    max_cpu_loras: ClassVar[int] = 1 << 20

    @property
    def max_num_seqs(self) -> int:
        return self.max_batch_size

    @property
    def max_num_batched_tokens(self) -> int:
        return self.max_model_len + self.max_batch_size

    def resolved(self, scenario: Sections) -> Self:
        prefetch = self.adapter_loading.overlap is not False
        return self.with_common(scenario, kernels="sgmv", overlap=True, prefetch=prefetch)

    def check(self, scenario: Sections) -> None:
        check_one_gpu(self, "Punica")
        check_common(self, scenario)
        ranks, kernels = used_ranks(scenario), ", ".join(map(str, PUNICA_RANKS))
        if len(ranks) > 1:
            allowed = f"Punica's kernels take one rank for all adapters: give one of {kernels}"
            raise WrongValueError("adapters.ranks", ranks, allowed)
        check_ranks(scenario, PUNICA_RANKS, "Punica")
        if scenario.model_spec.is_moe and ranks:
            allowed = "Punica adapts dense models only: its seven projections include no experts"
            raise WrongValueError("model", scenario.model, allowed)
        if self.enable_lora:
            check_host_memory(scenario, ALL_LINEAR, 1)
