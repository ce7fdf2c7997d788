"""vLLM: the flags of one replica, by vLLM's own names, and the rules between them and with the adapters.

Each rule raises one WrongValueError.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator

from simlora.scenario.base import Config, WrongValueError, auto
from simlora.scenario.engines.base import EngineBase
from simlora.scenario.engines.published_checks import check_prefetch
from simlora.scenario.engines.vllm_versions import VERSIONS, VllmVersion, known_versions
from simlora.scenario.lora_modules import ModuleChoice, adapter_bytes, supported_modules
from simlora.scenario.model_lookup import ModelSupport
from simlora.scenario.sections import Sections


class Speculative(Config):
    """Speculative decoding as an acceptance model."""

    num_speculative_tokens: int = Field(ge=1, le=64, description="Draft tokens proposed in each step")
    acceptance_rate: float = Field(
        ge=0, le=1, description="Probability that a draft token is accepted after the one before"
    )


class VllmConfig(EngineBase):
    """One replica. Fields that are null take vLLM's default for the version, model and GPU, and hold it once loaded."""

    spec: ClassVar[str] = "simlora.engines.vllm.spec:SPEC"
    kind: Literal["vllm"] = Field(default="vllm", description="Serving engine")
    version: str = Field(
        default="0.20",
        description="vLLM version (V1 engine); quote it in YAML",
        json_schema_extra={"enum": list(VERSIONS)},
    )
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
        known = known_versions()
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
    def rules(self) -> VllmVersion:
        """The version's entry in the table."""
        return VERSIONS[self.version]

    @property
    def model_support(self) -> ModelSupport:
        return self.rules.models

    def resolved(self, scenario: Sections) -> Self:
        """vLLM's own order: model length, then the token budget, then the number of sequences.

        Source: `EngineArgs._set_default_max_num_seqs_and_batched_tokens_args` (0.20), `_set_default_args_v1` (0.8.5).
        """
        rules = self.rules.defaults
        engine = self.with_common(scenario, kernels="padded").filled(max_cpu_loras=self.max_loras)
        tokens, seqs = rules.batch(scenario.gpu_spec)
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

    def check(self, scenario: Sections) -> None:
        check_vllm(self, scenario)


def check_vllm(engine: VllmConfig, scenario: Sections) -> None:
    """All rules, the most basic first."""
    _check_version_flags(engine)
    _check_sharding(engine)
    _check_stages(engine, scenario)
    _check_batch(engine, scenario)
    check_prefetch(engine)
    if not engine.enable_lora:
        return
    _check_ranks(engine, scenario)
    _check_modules(engine, scenario)
    _check_slots(engine, scenario)
    _check_host_memory(engine, scenario)


def _check_sharding(engine: VllmConfig) -> None:
    if engine.fully_sharded_loras and engine.max_lora_rank % engine.tensor_parallel_size:
        raise WrongValueError(
            "engine.fully_sharded_loras",
            True,
            f"needs engine.max_lora_rank ({engine.max_lora_rank}) to be a multiple of "
            f"engine.tensor_parallel_size ({engine.tensor_parallel_size})",
        )


def _check_stages(engine: VllmConfig, scenario: Sections) -> None:
    """What is modelled together with pipeline stages."""
    stages, layers = engine.pipeline_parallel_size, scenario.model_spec.num_hidden_layers
    if stages == 1:
        return
    key = "engine.pipeline_parallel_size"
    if stages > layers:
        raise WrongValueError(key, stages, f"at most one stage for each of the {layers} layers of {scenario.model}")
    if not engine.rules.defaults.pipeline_stages:
        modelled = ", ".join(f'"{v.version}"' for v in VERSIONS.values() if v.defaults.pipeline_stages)
        raise WrongValueError(key, stages, f"must be 1 with vLLM {engine.version}: stages are modelled for {modelled}")
    if engine.async_scheduling:
        raise WrongValueError("engine.async_scheduling", True, f"must be false with {key} above 1")
    if engine.speculative is not None:
        allowed = f"must be absent with {key} above 1: vLLM has no draft tokens there"
        raise WrongValueError("engine.speculative", engine.speculative.model_dump(), allowed)
    if engine.adapter_loading.overlap:
        raise WrongValueError("engine.adapter_loading.overlap", True, f"must be false with {key} above 1")
    if engine.kernels != "padded":
        raise WrongValueError("engine.kernels", engine.kernels, f"must be padded with {key} above 1")


def _check_batch(engine: VllmConfig, scenario: Sections) -> None:
    model = scenario.model_spec
    if engine.max_model_len > model.max_position_embeddings:
        limit = model.max_position_embeddings
        raise WrongValueError(
            "engine.max_model_len", engine.max_model_len, f"{model.name} takes at most {limit} tokens"
        )
    if engine.max_num_batched_tokens < engine.max_num_seqs:
        raise WrongValueError(
            "engine.max_num_batched_tokens",
            engine.max_num_batched_tokens,
            f"must be at least engine.max_num_seqs ({engine.max_num_seqs})",
        )
    if not engine.enable_chunked_prefill and engine.max_num_batched_tokens < engine.max_model_len:
        raise WrongValueError(
            "engine.max_num_batched_tokens",
            engine.max_num_batched_tokens,
            f"must be at least engine.max_model_len ({engine.max_model_len}) with engine.enable_chunked_prefill: false",
        )


def _check_version_flags(engine: VllmConfig) -> None:
    for key, only in engine.rules.defaults.fixed_flags:
        value = getattr(engine, key)
        if value != only:
            allowed = f"vLLM {engine.version} has no choice here: leave it out"
            raise WrongValueError(f"engine.{key}", value, allowed)


def _check_ranks(engine: VllmConfig, scenario: Sections) -> None:
    allowed = engine.rules.defaults.allowed_lora_ranks
    if engine.max_lora_rank not in allowed:
        ranks = ", ".join(map(str, allowed))
        raise WrongValueError("engine.max_lora_rank", engine.max_lora_rank, f"vLLM {engine.version} allows: {ranks}")
    for rank, share in scenario.adapters.ranks.items():
        if rank > engine.max_lora_rank and share > 0 and scenario.adapters.count:
            limit = engine.max_lora_rank
            raise WrongValueError("adapters.ranks", rank, f"must be at most engine.max_lora_rank ({limit})")


def _check_modules(engine: VllmConfig, scenario: Sections) -> None:
    model, rules = scenario.model_spec, engine.rules
    supported = supported_modules(model, rules.models.expert_lora)
    for module in scenario.adapter_modules if scenario.adapters.count else ():
        if module not in supported:
            allowed = f"vLLM {rules.version} serves these on {model.name}: {', '.join(supported)}"
            raise WrongValueError("adapters.target_modules", module, allowed)
    if not scenario.slot_modules:
        allowed = f"none of these is a LoRA layer of {model.name}: {', '.join(supported)}"
        raise WrongValueError("engine.lora_target_modules", engine.lora_target_modules, allowed)
    if "lm_head" in scenario.slot_modules and model.vocab_size > rules.defaults.max_lora_vocab:
        most = rules.defaults.max_lora_vocab
        allowed = f"its vocabulary of {model.vocab_size} exceeds the {most} that vLLM's LoRA supports"
        raise WrongValueError("model", scenario.model, allowed)


def _check_slots(engine: VllmConfig, scenario: Sections) -> None:
    adapters = scenario.adapters
    if engine.max_cpu_loras < engine.max_loras:
        allowed = f"max_cpu_loras ({engine.max_cpu_loras}) must be at least max_loras ({engine.max_loras})"
        raise WrongValueError("engine.max_cpu_loras", engine.max_cpu_loras, allowed)
    if len(adapters.pinned) >= engine.max_loras:
        allowed = f"at most engine.max_loras - 1 ({engine.max_loras - 1}) adapters: one slot must stay free to move"
        raise WrongValueError("adapters.pinned", list(adapters.pinned), allowed)


def _check_host_memory(engine: VllmConfig, scenario: Sections) -> None:
    """Every tensor-parallel worker keeps a whole copy of each cached adapter in pinned host memory, at its own rank."""
    storage = scenario.storage
    limit_bytes = storage.host_gib * 2**30
    needed_bytes = host_cache_bytes(scenario, engine.max_cpu_loras)
    if needed_bytes <= limit_bytes:
        return
    cached, workers = min(engine.max_cpu_loras, scenario.adapters.count), engine.tensor_parallel_size
    need = f"{cached} adapters x {workers} workers take {_gib(needed_bytes)} GiB of host memory"
    most = largest_host_cache(scenario)
    if most >= engine.max_loras:
        allowed = f"{need}, storage.host_gib is {storage.host_gib:g}: at most {most}"
        raise WrongValueError("engine.max_cpu_loras", engine.max_cpu_loras, allowed)
    least = _gib(host_cache_bytes(scenario, engine.max_loras))
    allowed = f"{need}: at least {least}, for engine.max_loras ({engine.max_loras}) of them"
    raise WrongValueError("storage.host_gib", storage.host_gib, allowed)


def _gib(size_bytes: int) -> str:
    """GiB, rounded up so that the figure is enough."""
    return f"{math.ceil(size_bytes / 2**30 * 100) / 100:,.2f}"


def host_cache_bytes(scenario: Sections, cached: int) -> int:
    """Host bytes of one replica when the `cached` largest adapters are in memory: all workers, each at its own rank."""
    total, left = 0, cached
    for rank, count in sorted(scenario.adapters.rank_counts().items(), reverse=True):
        taken = min(count, left)
        total += taken * adapter_bytes(scenario.model_spec, rank, scenario.adapter_modules)
        left -= taken
    return total * int(scenario.engine.tensor_parallel_size)


def largest_host_cache(scenario: Sections) -> int:
    """The largest max_cpu_loras whose adapters fit storage.host_gib, whichever adapters they are."""
    left, fit = scenario.storage.host_gib * 2**30 / scenario.engine.tensor_parallel_size, 0
    for rank, count in sorted(scenario.adapters.rank_counts().items(), reverse=True):
        size = adapter_bytes(scenario.model_spec, rank, scenario.adapter_modules)
        taken = min(count, int(left // size))
        fit, left = fit + taken, left - taken * size
        if taken < count:
            break
    return fit
