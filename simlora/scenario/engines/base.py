"""What the settings of all engines share, and the vocabulary that the rest of simlora reads from any of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field

from simlora.scenario.base import Config, auto
from simlora.scenario.model_lookup import KNOWN_MODELS, ModelSupport
from simlora.scenario.sections import Sections

KernelFamily = Literal[
    "padded", "sgmv", "bgmv", "mbgmv", "mbgmm", "csgmv", "padded-bmm", "grouped-gemm", "loop", "simlora"
]
"""padded: vLLM's Triton kernels over slots. sgmv, bgmv: Punica's, one rank. mbgmv, mbgmm: S-LoRA's, own ranks. csgmv:
SGLang's chunks. padded-bmm: gather and torch.bmm at the largest rank. grouped-gemm: FlashInfer's, tile waste included.
loop: two small GEMMs per adapter. simlora: the kernels of this repository."""


class AdapterLoading(Config):
    """How adapters reach the GPU. Fields that are null take what the engine really does."""

    overlap: bool = auto("Copy on a side stream while steps go on; the request waits, the batch does not")
    pinned: bool = auto("Host copies are pinned and contiguous; false: pageable, pinned or staged at every load")
    prefetch: bool = auto("Begin to load the adapters of queued requests before they are admitted (needs overlap)")


class EngineBase(Config):
    """Settings of one replica that every engine has. Names that engines share are vLLM's."""

    kind: str = Field(description="Serving engine")
    enable_lora: bool = Field(default=True, description="Serve adapters; false: the base model only")
    tensor_parallel_size: int = Field(default=1, ge=1, le=64, description="GPUs that share each layer")
    pipeline_parallel_size: int = Field(default=1, ge=1, description="Pipeline stages")
    max_model_len: int = auto("Longest prompt + output; null: the model's own limit", ge=1, le=10_000_000)
    endpoint: Literal["http", "in-process"] = Field(default="http", description="How clients reach the engine")
    kernels: KernelFamily = auto("LoRA kernels; null: the engine's own")
    adapter_loading: AdapterLoading = Field(default=AdapterLoading(), description="How adapters reach the GPU")

    if TYPE_CHECKING:  # what every engine has besides: fields, or properties and constants that say it in its own terms

        @property
        def version(self) -> str: ...
        @property
        def max_loras(self) -> int: ...
        @property
        def max_lora_rank(self) -> int: ...
        @property
        def max_cpu_loras(self) -> int: ...
        @property
        def max_num_seqs(self) -> int: ...
        @property
        def max_num_batched_tokens(self) -> int: ...
        @property
        def block_size(self) -> int: ...
        @property
        def gpu_memory_utilization(self) -> float: ...
        @property
        def async_scheduling(self) -> bool: ...
        @property
        def enable_chunked_prefill(self) -> bool: ...
        @property
        def enable_prefix_caching(self) -> bool: ...
        @property
        def enforce_eager(self) -> bool: ...
        @property
        def eviction(self) -> str: ...
        @property
        def fully_sharded_loras(self) -> bool: ...
        @property
        def specialize_active_lora(self) -> bool: ...
        @property
        def lora_target_modules(self) -> str: ...
        @property
        def num_gpu_blocks_override(self) -> int | None: ...
        @property
        def speculative(self) -> Any: ...

    spec: ClassVar[str]
    """Where the engine's EngineSpec is found, "module:name"."""
    registered_on_gpu: ClassVar[bool] = True
    """Registering adapters before the run (adapters.preload) brings the last ones to the GPU as well."""

    def with_common(
        self, scenario: Sections, kernels: str, overlap: bool = False, pinned: bool = True, prefetch: bool = False
    ) -> Self:
        """A copy with the shared defaults filled in: the model's length, and how this engine computes and loads."""
        loading = self.adapter_loading.filled(overlap=overlap, pinned=pinned, prefetch=prefetch)
        engine = self.model_copy(update={"adapter_loading": loading})
        return engine.filled(max_model_len=scenario.model_spec.max_position_embeddings, kernels=kernels)

    @property
    def model_support(self) -> ModelSupport:
        """Models and modules that the engine serves."""
        return KNOWN_MODELS

    def resolved(self, scenario: Sections) -> Self:
        """A copy with every open default replaced by the engine's own; the scenario's other sections are as given."""
        raise NotImplementedError

    def check(self, scenario: Sections) -> None:
        """Rules between the engine's keys and other sections, once all defaults are resolved.

        Raises:
            WrongValueError: the first rule that does not hold, with the whole key path.
        """
        raise NotImplementedError


class PublishedEngine(EngineBase):
    """An engine as its paper or repository describes it, in one version; what vLLM has and it has not is constant."""

    version: ClassVar[str] = "published"
    fully_sharded_loras: ClassVar[bool] = False
    specialize_active_lora: ClassVar[bool] = False
    enable_prefix_caching: ClassVar[bool] = False
    num_gpu_blocks_override: ClassVar[int | None] = None
    speculative: ClassVar[None] = None
    lora_target_modules: ClassVar[str] = "as-adapters"
