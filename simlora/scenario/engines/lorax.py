"""LoRAX (a7394ba, May 2026): per-adapter queues, an active set, a loader that blocks the shard."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from simlora.scenario.base import WrongValueError, auto
from simlora.scenario.engines.base import PublishedEngine
from simlora.scenario.engines.published_checks import check_blocking_loads, check_common, check_host_memory
from simlora.scenario.sections import Sections


class LoraxConfig(PublishedEngine):
    """One LoRAX deployment, by the launcher's names and defaults."""

    spec: ClassVar[str] = "simlora.engines.lorax.spec:SPEC"
    kind: Literal["lorax"] = Field(default="lorax", description="Serving engine")
    waiting_served_ratio: float = Field(
        default=1.2, ge=0, description="Waiting over running requests that a prefill needs"
    )
    max_waiting_tokens: int = Field(
        default=20, ge=1, description="Decode steps after which any waiting request goes in"
    )
    max_concurrent_requests: int = Field(default=1024, ge=1, description="More are refused as overloaded (429)")
    max_batch_prefill_tokens: int = auto("Prompt tokens of one prefill; null: the longest prompt + 50", ge=1)
    max_batch_total_tokens: int | None = Field(
        default=None, ge=1, description="Tokens reserved by the batch; null: what the KV cache holds"
    )
    chunked_prefill: bool = Field(default=False, description="Split prompts, and mix them with decodes")
    eager_prefill: bool = Field(default=True, description="Prefill again until no batch can be formed")
    adapter_memory_fraction: float = Field(default=0.1, ge=0, lt=1, description="GPU memory kept for adapters")
    max_active_adapters: int = Field(default=1024, ge=1, description="Adapters active at a time")
    adapter_cycle_time_s: float = Field(default=2.0, gt=0, description="Turn of an adapter while others are pending")
    host_cache: bool = Field(default=False, description="Keep offloaded adapters in host memory; false: disk again")
    preloaded_adapter_ids: Annotated[tuple[int, ...], Field(strict=False)] = Field(
        default=(), description="Loaded at the start, never offloaded; requests for any other adapter are refused"
    )
    compile: bool = Field(
        default=True, description="CUDA graphs for decodes of one rank; the launcher has none for a sharded model"
    )
    block_size: Literal[1, 16] = Field(default=16, description="Tokens in a KV block")

    max_lora_rank: ClassVar[int] = 256
    async_scheduling: ClassVar[bool] = False
    registered_on_gpu: ClassVar[bool] = False
    eviction: ClassVar[str] = "cycle"
    gpu_memory_utilization: ClassVar[float] = 1.0
    max_cpu_loras: ClassVar[int] = 1 << 20

    @property
    def enforce_eager(self) -> bool:
        return not self.compile or self.tensor_parallel_size > 1

    @property
    def enable_chunked_prefill(self) -> bool:
        return self.chunked_prefill

    @property
    def max_loras(self) -> int:
        return self.max_active_adapters

    @property
    def max_num_seqs(self) -> int:
        return self.max_concurrent_requests

    @property
    def max_num_batched_tokens(self) -> Any:
        return self.max_batch_prefill_tokens

    def resolved(self, scenario: Sections) -> Self:
        """The launcher's defaults. Preloaded adapters leave no memory for others: it sets the fraction to 0."""
        engine = self.with_common(scenario, kernels="bgmv", pinned=False)
        if engine.preloaded_adapter_ids:
            engine = engine.model_copy(update={"adapter_memory_fraction": 0.0})
        return engine.filled(max_batch_prefill_tokens=engine.max_model_len + 49)

    def check(self, scenario: Sections) -> None:
        check_common(self, scenario)
        check_blocking_loads(self)
        self._check_tokens()
        if not self.enable_lora:
            return
        self._check_preloaded(scenario)
        if scenario.adapters.count and not self.preloaded_adapter_ids and not self.adapter_memory_fraction:
            allowed = "must be above 0 unless adapters are preloaded: no adapter could be loaded"
            raise WrongValueError("engine.adapter_memory_fraction", 0.0, allowed)
        if self.host_cache:
            check_host_memory(scenario, scenario.adapter_modules, 1)

    def _check_tokens(self) -> None:
        if not self.chunked_prefill and self.max_batch_prefill_tokens < self.max_model_len - 1:
            allowed = f"must be at least engine.max_model_len - 1 ({self.max_model_len - 1}): prompts are not split"
            raise WrongValueError("engine.max_batch_prefill_tokens", self.max_batch_prefill_tokens, allowed)
        if self.max_batch_total_tokens is not None and self.max_batch_total_tokens < self.max_model_len:
            allowed = f"must be at least engine.max_model_len ({self.max_model_len})"
            raise WrongValueError("engine.max_batch_total_tokens", self.max_batch_total_tokens, allowed)

    def _check_preloaded(self, scenario: Sections) -> None:
        listed, count = self.preloaded_adapter_ids, scenario.adapters.count
        for adapter in listed:
            if not 1 <= adapter <= count:
                allowed = f"must be an adapter id from 1 to adapters.count ({count})"
                raise WrongValueError("engine.preloaded_adapter_ids", adapter, allowed)
        if len(set(listed)) < len(listed):
            raise WrongValueError("engine.preloaded_adapter_ids", list(listed), "an id is listed twice")
