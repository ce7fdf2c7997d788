"""SGLang (August 2026): prefill first, slots that count the base model, chunked SGMV."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import Field

from simlora.scenario.base import WrongValueError, auto
from simlora.scenario.engines.base import PublishedEngine
from simlora.scenario.engines.published_checks import (
    check_common,
    check_host_memory,
    check_slots,
    kv_tokens_estimate,
)
from simlora.scenario.sections import Sections

_BY_MEMORY_GIB = (
    (20, 2048, 8, 8),
    (35, 2048, 24, 80),
    (60, 4096, 32, 160),
    (160, 8192, 256, 512),
    (float("inf"), 16_384, 512, 512),
)
"""(GPU memory below, chunked_prefill_size, cuda_graph_max_bs below and from 4 GPUs on). Source: `ServerArgs.
_handle_gpu_memory_settings`, March 2026."""


class SglangConfig(PublishedEngine):
    """One SGLang server, by the names of its own command line."""

    spec: ClassVar[str] = "simlora.engines.sglang.spec:SPEC"
    kind: Literal["sglang"] = Field(default="sglang", description="Serving engine")
    max_loras_per_batch: int = Field(default=8, ge=1, le=4096, description="Slots, the base model's included")
    max_lora_rank: int = auto("Rank that slots are sized for; null: the largest of the adapters", ge=1, le=512)
    max_loaded_loras: int | None = Field(default=None, ge=1, description="Adapters in host memory; null: all")
    max_running_requests: int = auto("Requests that run together; null: from the KV cache", ge=1, le=65_536)
    chunked_prefill_size: int = auto("Tokens of one prompt chunk; null: by GPU memory", ge=1)
    max_prefill_tokens: int = Field(default=16_384, ge=1, description="Prompt tokens of one prefill")
    mem_fraction_static: float = auto("GPU memory for weights, slots and KV cache; null: by GPU memory", gt=0, lt=1)
    enable_mixed_chunk: bool = Field(default=False, description="Decodes ride along with prompt chunks")
    schedule_conservativeness: float = Field(default=1.0, gt=0, description="Factor on the initial new-token ratio")
    lora_drain_wait_threshold: float = Field(
        default=0.0, ge=0, description="Seconds of waiting that drain a slot; 0: off"
    )
    lora_eviction_policy: Literal["lru", "fifo"] = Field(default="lru", description="Which adapter leaves a slot")
    cuda_graph_max_bs: int = auto("Largest batch with a CUDA graph; null: by GPU memory", ge=1, le=65_536)
    disable_cuda_graph: bool = Field(default=False, description="No CUDA graphs")

    block_size: ClassVar[int] = 1
    async_scheduling: ClassVar[bool] = False
    enable_chunked_prefill: ClassVar[bool] = True

    @property
    def eviction(self) -> str:
        return self.lora_eviction_policy

    @property
    def enforce_eager(self) -> bool:
        return self.disable_cuda_graph

    @property
    def gpu_memory_utilization(self) -> Any:
        return self.mem_fraction_static

    @property
    def max_loras(self) -> int:
        return self.max_loras_per_batch

    @property
    def max_cpu_loras(self) -> int:
        return self.max_loaded_loras or 1 << 20

    @property
    def max_num_seqs(self) -> Any:
        return self.max_running_requests

    @property
    def max_num_batched_tokens(self) -> int:
        """A prefill shares one chunk between its prompts."""
        return min(self.chunked_prefill_size, self.max_prefill_tokens)

    def resolved(self, scenario: Sections) -> Self:
        """SGLang's own order: chunk and graphs by GPU memory, what they need, then the share of what remains.

        max_running_requests follows `ModelRunner.init_memory_pool`, from an estimate of the KV tokens.
        """
        overlap = self.adapter_loading.overlap is True
        engine = self.with_common(scenario, kernels="csgmv", pinned=overlap)
        memory_gib = scenario.gpu_spec.memory_gib
        chunk, few, many = next(row[1:] for row in _BY_MEMORY_GIB if memory_gib < row[0])
        engine = engine.filled(
            max_lora_rank=max((rank for rank, share in scenario.adapters.ranks.items() if share > 0), default=16),
            chunked_prefill_size=chunk,
            cuda_graph_max_bs=many if engine.tensor_parallel_size >= 4 else few,
        )
        engine = engine.filled(mem_fraction_static=_static_fraction(engine, memory_gib * 1024))
        degree, share = engine.tensor_parallel_size, engine.mem_fraction_static
        tokens = kv_tokens_estimate(scenario.model_spec, scenario.gpu_spec, degree, share)
        most = min(max(tokens * 512 // engine.max_model_len, 2048), 4096)
        return engine.filled(max_running_requests=most)

    def check(self, scenario: Sections) -> None:
        if self.mem_fraction_static <= 0:
            allowed = "above 0: the GPU is too small for SGLang's default reserve"
            raise WrongValueError("engine.mem_fraction_static", self.mem_fraction_static, allowed)
        check_common(self, scenario, pins=True, stages="SGLang's stages are not modelled")
        check_slots(self, scenario, base=1)
        if self.enable_lora:
            self._check_loaded(scenario)
            most, key = self.max_loaded_loras, "engine.max_loaded_loras"
            check_host_memory(scenario, scenario.adapter_modules, self.tensor_parallel_size, most, key)

    def _check_loaded(self, scenario: Sections) -> None:
        """Rules of `ServerArgs.check_lora_server_args`."""
        loaded, slots = self.max_loaded_loras, self.max_loras_per_batch
        if loaded is not None and loaded < slots:
            allowed = f"must be at least engine.max_loras_per_batch ({slots})"
            raise WrongValueError("engine.max_loaded_loras", loaded, allowed)
        if self.adapter_loading.overlap and (loaded or scenario.adapters.count) > 2 * slots:
            allowed = f"at most 2 x engine.max_loras_per_batch ({2 * slots}) with engine.adapter_loading.overlap: true"
            raise WrongValueError("engine.max_loaded_loras", loaded, allowed)


def _static_fraction(engine: SglangConfig, memory_mib: float) -> float:
    """mem_fraction_static. Reserved: metadata, 1.5 MiB per token of a chunk, 2 MiB per sequence of the largest graph,
    1 GiB per 8 GPUs; at least 10 GiB of a large GPU. Prefill graphs, which LoRA turns off, are left out."""
    reserved = 512 + 1.5 * max(engine.chunked_prefill_size, 2048) + 2 * engine.cuda_graph_max_bs
    reserved += engine.tensor_parallel_size * engine.pipeline_parallel_size / 8 * 1024
    if memory_mib > 60 * 1024:
        reserved = max(reserved, 10 * 1024)
    return round((memory_mib - reserved) / memory_mib, 3)
