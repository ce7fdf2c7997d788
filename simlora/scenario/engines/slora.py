"""S-LoRA: the system of the paper (arXiv:2311.03285) or, with artifact, its published code (c1ddf48, January 2024)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import Field

from simlora.scenario.base import WrongValueError, auto
from simlora.scenario.engines.base import PublishedEngine
from simlora.scenario.engines.published_checks import (
    check_common,
    check_host_memory,
    check_one_gpu,
    check_prefill_limit,
    check_ranks,
    kv_tokens_estimate,
)
from simlora.scenario.lora_modules import ATTENTION
from simlora.scenario.sections import Sections

_PAGE_BYTES = {"16KiB": 16 << 10, "64KiB": 64 << 10}
ARTIFACT_RANKS = (8, 16, 32, 64, 128)
"""Ranks that the published BGMV kernels are compiled for."""


class SloraConfig(PublishedEngine):
    """One S-LoRA replica, by the names of its own command line. Fields that are null take its defaults."""

    spec: ClassVar[str] = "simlora.engines.slora.spec:SPEC"
    kind: Literal["slora"] = Field(default="slora", description="Serving engine")
    artifact: bool = Field(
        default=False,
        description="The published code: no adapter cache on the GPU, each adapter crosses PCIe twice, ranks 8, 16, "
        "32, 64 and 128 only, multi-head attention only, one GPU. false: the system that the paper describes",
    )
    max_total_token_num: int | None = Field(
        default=None, ge=1, le=2**40, description="Rows of the unified pool; null: what fits the GPU"
    )
    pool_size_lora: int = Field(default=0, ge=0, le=2**40, description="Rows more, for adapters alone")
    unified_memory: bool = Field(
        default=True,
        description="KV cache and adapters share one pool; false: pool_size_lora rows are all adapters get",
    )
    page: Literal["row", "16KiB", "64KiB"] = Field(default="row", description="Unit of the pool")
    batch_max_tokens: int = auto(
        "Prompt tokens of one prefill; null: a sixth of the pool, at least max_model_len", ge=1
    )
    running_max_req_size: int = Field(default=1000, ge=1, le=65_536, description="Requests that run together")
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1, description="Share of GPU memory the engine may use")
    batch_num_adapters: int | None = Field(
        default=None, ge=1, description="Prefer requests of running adapters from that many on (adapter clustering)"
    )
    scheduler: Literal["fcfs", "vtc"] = Field(default="fcfs", description="vtc: fair by tokens served per adapter")
    early_abort: bool = Field(default=False, description="Abort requests that cannot meet abort_after_s any more")
    abort_after_s: float = Field(default=6.0, gt=0, description="First-token objective of early abort")

    max_lora_rank: ClassVar[int] = 256
    block_size: ClassVar[int] = 1
    async_scheduling: ClassVar[bool] = False
    enable_chunked_prefill: ClassVar[bool] = False
    enforce_eager: ClassVar[bool] = True
    eviction: ClassVar[str] = "lru"
    max_loras: ClassVar[int] = 1 << 20
    """Adapters are bounded by pool rows, not by a number."""
    max_cpu_loras: ClassVar[int] = 1 << 20
    """All adapters are read into host memory at the start."""

    @property
    def max_num_seqs(self) -> int:
        return self.running_max_req_size

    @property
    def max_num_batched_tokens(self) -> Any:
        return self.batch_max_tokens

    def resolved(self, scenario: Sections) -> Self:
        """batch_max_tokens: as `api_server.py`, from an estimate of the pool where its size is left open."""
        paper = not self.artifact
        prefetch = paper and self.adapter_loading.overlap is not False
        engine = self.with_common(scenario, kernels="mbgmv", overlap=paper, prefetch=prefetch)
        degree, share = engine.tensor_parallel_size, engine.gpu_memory_utilization
        fitting = kv_tokens_estimate(scenario.model_spec, scenario.gpu_spec, degree, share, step_share=1 / 6)
        pool = engine.max_total_token_num or fitting
        return engine.filled(batch_max_tokens=max(pool // 6, engine.max_model_len))

    def check(self, scenario: Sections) -> None:
        check_common(self, scenario)
        if scenario.adapters.preload:
            allowed = "must be false: S-LoRA reads all adapters into host memory at its start, and none onto the GPU"
            raise WrongValueError("adapters.preload", True, allowed)
        check_prefill_limit(self, "batch_max_tokens")
        if self.artifact:
            self._check_artifact(scenario)
        self._check_page(scenario)
        if self.enable_lora:
            check_host_memory(scenario, ATTENTION, 1)

    def _check_artifact(self, scenario: Sections) -> None:
        model = scenario.model_spec
        if model.num_key_value_heads != model.num_attention_heads:
            allowed = (
                f"{model.name} has {model.num_key_value_heads} KV heads for {model.num_attention_heads} attention "
                "heads, and S-LoRA's published code serves adapters on multi-head models only, such as llama-2-7b "
                "and llama-2-13b; engine.artifact: false serves it"
            )
            raise WrongValueError("model", scenario.model, allowed)
        check_one_gpu(self, "S-LoRA's published code")
        check_ranks(scenario, ARTIFACT_RANKS, "S-LoRA's published code")
        if self.page != "row":
            raise WrongValueError("engine.page", self.page, "S-LoRA's published code has rows only: row")

    def _check_page(self, scenario: Sections) -> None:
        model = scenario.model_spec
        heads = max(-(-model.num_key_value_heads // self.tensor_parallel_size), 1)
        row_bytes = heads * model.head_dim * model.dtype_bytes
        if row_bytes > _PAGE_BYTES.get(self.page, row_bytes):
            larger = [name for name, size in _PAGE_BYTES.items() if size >= row_bytes]
            allowed = f"one token's keys take {row_bytes} bytes in each layer: {' or '.join(['row', *larger])}"
            raise WrongValueError("engine.page", self.page, allowed)
