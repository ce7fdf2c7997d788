"""vLLM: the flags of one replica, by vLLM's own names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, field_validator

from simlora.scenario.base import Config, WrongValueError, auto
from simlora.scenario.engines.base import EngineBase
from simlora.scenario.engines.vllm_checks import check_vllm
from simlora.scenario.lora_modules import ModuleChoice
from simlora.scenario.versions import VERSIONS, VersionRules

if TYPE_CHECKING:
    from simlora.scenario.root import Scenario


class Speculative(Config):
    """Speculative decoding as an acceptance model."""

    num_speculative_tokens: int = Field(ge=1, le=64, description="Draft tokens proposed in each step")
    acceptance_rate: float = Field(
        ge=0, le=1, description="Probability that a draft token is accepted after the one before"
    )


class EngineConfig(EngineBase):
    """One replica. Fields that are null take vLLM's default for the version, model and GPU, and hold it once loaded."""

    kind: Literal["vllm"] = Field(default="vllm", description="Serving engine")
    version: Literal["0.20", "0.8.5"] = Field(default="0.20", description="vLLM version (V1 engine); quote it in YAML")
    max_loras: int = Field(default=1, ge=1, le=4096, description="Adapter slots on the GPU, and adapters in one step")
    max_lora_rank: int = Field(default=16, description="Rank that every slot is sized for")
    max_cpu_loras: int = auto("Adapters cached in host memory; null: max_loras", ge=1, le=1_000_000)
    max_num_seqs: int = auto("Requests that run together; null: the version's default for the GPU", ge=1, le=65_536)
    max_num_batched_tokens: int = auto(
        "Tokens in one step; null: the version's default for the GPU", ge=1, le=4_194_304
    )
    gpu_memory_utilization: float = auto(
        "Share of GPU memory the engine may use; null: the version's default (0.20: 0.92, 0.8.5: 0.9)", gt=0, le=1
    )
    block_size: Literal[1, 8, 16, 32, 64, 128] = Field(default=16, description="Tokens in a KV block")
    num_gpu_blocks_override: int | None = Field(
        default=None, ge=2, le=2**40, description="KV blocks instead of the number that fits; null: what fits"
    )
    enable_chunked_prefill: bool = Field(default=True, description="Split prompts over steps")
    enable_prefix_caching: bool = auto("Reuse KV of equal prefixes of one adapter; null: the version's default (true)")
    async_scheduling: bool = auto("Schedule a step ahead; null: the version's default, false with pipeline stages")
    enforce_eager: bool = Field(default=False, description="No CUDA graphs")
    specialize_active_lora: bool = Field(
        default=False, description="CUDA graphs for several counts of active adapters (0.20)"
    )
    fully_sharded_loras: bool = Field(
        default=False, description="Shard both LoRA matrices over the tensor-parallel GPUs"
    )
    lora_target_modules: ModuleChoice = Field(
        default="all",
        description="Modules that get slot memory: all (vLLM's default: every linear layer, and embed_tokens and "
        "lm_head where the model class lists them), as-adapters (those in adapters.target_modules), or a list of names",
    )
    eviction: Literal["lru", "weighted-lru"] = Field(
        default="lru", description="Which adapter leaves a slot; vLLM: lru"
    )
    speculative: Speculative | None = Field(default=None, description="Speculative decoding; null: off")

    @field_validator("version", mode="before")
    @classmethod
    def _known_version(cls, value: Any) -> Any:
        known = ", ".join(f'"{version}"' for version in VERSIONS)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            raise WrongValueError("", value, f"write the version in quotes, as text: {known}")
        if isinstance(value, str):
            minor = ".".join(value.split(".")[:2])
            if value not in VERSIONS and minor in VERSIONS:
                return minor  # a patch release of a supported minor version
            if value not in VERSIONS:
                raise WrongValueError("", value, f"supported vLLM versions: {known}")
        return value

    @field_validator("block_size", mode="before")
    @classmethod
    def _not_a_bool(cls, value: Any) -> Any:
        if isinstance(value, bool):  # true == 1 would pass as a block size
            raise WrongValueError("", value, "must be one of: 1, 8, 16, 32, 64, 128")
        return value

    @property
    def rules(self) -> VersionRules:
        return VERSIONS[self.version]

    def resolved(self, scenario: Scenario) -> Self:
        """vLLM's own order: model length, then the token budget, then the number of sequences.

        Source: `EngineArgs._set_default_max_num_seqs_and_batched_tokens_args` (0.20), `_set_default_args_v1` (0.8.5).
        """
        rules = self.rules
        engine = self.with_common(scenario, kernels="padded").filled(max_cpu_loras=self.max_loras)
        tokens, seqs = rules.batch_defaults(scenario.gpu_spec)
        if engine.max_num_batched_tokens is None:
            if not engine.enable_chunked_prefill:
                tokens = max(tokens, engine.max_model_len)
            if rules.fits_batch_defaults:
                tokens = min(tokens, (engine.max_num_seqs or seqs) * engine.max_model_len)
            engine = engine.filled(max_num_batched_tokens=tokens)
        return engine.filled(
            max_num_seqs=min(seqs, engine.max_num_batched_tokens) if rules.fits_batch_defaults else seqs,
            enable_prefix_caching=rules.prefix_caching,
            async_scheduling=rules.async_scheduling and self.pipeline_parallel_size == 1,
            gpu_memory_utilization=rules.gpu_memory_utilization,
        )

    def check(self, scenario: Scenario) -> None:
        check_vllm(self, scenario)
