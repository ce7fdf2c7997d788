"""What differs between the supported vLLM versions, in one table: defaults, scheduling, execution, CUDA graphs, memory.

Sources, read in the vLLM repository and in the 0.20.2 wheel:
- batch defaults: `EngineArgs._set_default_args_v1` of April 2025 (0.8.5: 70 GiB or more, A100 included) and
  `EngineArgs.get_batch_defaults` of 2026 (0.20: A100 excluded since pull request 17885, May 2025), API-server context.
- chunked prefill: `_set_default_args_v1` of 0.8.5 turns it on whatever the flag says.
- ranks: `LoRAConfig.__post_init__` (0.8.5), `MaxLoRARanks` in vllm/config/lora.py (0.20).
- vocabulary: `LogitsProcessorWithLoRA.create_lora_weights` (257,024 and 258,048).
- Qwen3 lists embedding modules since pull request 29816 (December 2025); gpt-oss exists since 0.10.1.

| | 0.8.5 (V1) | 0.20 | source |
|---|---|---|---|
| scheduling and execution | alternate | one step ahead (async_scheduling) | v1/engine/core.py; default since 0.14 |
| full prompt must fit to be admitted | no | yes (scheduler_reserve_full_isl) | v1 scheduler.py, 2026-03-24 |
| skipped requests | put back into the one queue | a queue of their own, first | v1 scheduler.py, 2026-03-10 |
| decode steps | piecewise graphs, attention launched between | full CUDA graph | v1/cudagraph_dispatcher.py |
| captured sizes above 256 | every 8 | every 16, up to 2 max_num_seqs | config.py; config/vllm.py |
| LoRA kernels without any adapter in the step | run in the graphs over an empty grid | skipped | pull request 25914 |
| penalties of the model's generation_config.json | priced | not measured, left out | v1/sample/ops/penalties.py |
| column tile of expand, several slices | 128 | 64 | lora/ops/triton_ops |
| LoRA vocabulary padding | 256 extra rows | none | lora/layers |

Memory, each number with its source:
- [code]     gpu_worker.determine_available_memory, gpu_model_runner.profile_run, lora/layers,
             sample/ops/topk_topp_sampler of the version.
- [planner]  60 start-up logs of vLLM 0.19.0 on H100-80GB (8,192 tokens, 1,024 sequences; TP and PP 1 to 4), from the
             llm-d planner project (github.com/llm-d-incubation/llm-d-planner, accuracy/results/v0.19.0, April 2026).
- [mn5]      84 start-ups of a vLLM 0.8.5 development build on a 64 GB H100 (2,048 sequences, 8 to 384 slots) and 243 of
             0.5.0 (4,096 sequences), published with github.com/FerranAgulloLopez/GPULLMAdapterOptimization.
- [h200]     vLLM 0.20.2 on an H200 (2,048 tokens, 256 sequences): one start without LoRA, two with.
- [explorer] start-up logs of vLLM 0.11 on H100-80GB in github.com/llm-d/llm-d-benchmark, config_explorer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from simlora.errors import ConfigError
from simlora.scenario.gpu import GpuSpec
from simlora.scenario.model_lookup import KNOWN_MODELS, LLAMA_LIKE, ModelSupport

_GIB = 2**30


@dataclass(frozen=True)
class Defaults:
    """Defaults and limits of the flags."""

    allowed_lora_ranks: tuple[int, ...]
    max_lora_vocab: int
    """Largest vocabulary that LoRA on lm_head supports."""
    a100_gets_large_batch: bool
    fits_batch_defaults: bool
    """A default limit shrinks to what the others allow, instead of being refused."""
    async_scheduling: bool
    prefix_caching: bool
    gpu_memory_utilization: float
    """Share of GPU memory. Source: vllm/config/cache.py of the 0.20.2 wheel (0.92), of 0.8.5 (0.9)."""
    pipeline_stages: bool = True
    """Pipeline stages are modelled."""
    fixed_flags: tuple[tuple[str, Any], ...] = ()
    """(field of the engine, its only value) where the version has no such choice."""

    def batch(self, gpu: GpuSpec) -> tuple[int, int]:
        """(max_num_batched_tokens, max_num_seqs) of the API server on that GPU."""
        large = gpu.memory_bytes >= 70 * _GIB and (self.a100_gets_large_batch or not gpu.name.startswith("a100"))
        return (8192, 1024) if large else (2048, 256)


@dataclass(frozen=True)
class Scheduling:
    """The scheduler's differences; async_scheduling is a flag with a default by version."""

    reserve_full_prompt: bool
    """A request is admitted only where its whole prompt fits the free KV blocks."""
    skipped_first: bool
    """Requests that were passed over have a queue of their own, which is drained first."""


@dataclass(frozen=True)
class Execution:
    """How a step runs."""

    alternates: bool
    """Nothing is in flight while a step is prepared: no time of the host is hidden but launching."""
    unused_lora_runs: bool
    """Graphs of an engine with LoRA hold its kernels, so that a step without adapters launches them, too."""
    expand_columns_sliced: int
    """Column tile of the expand kernel where a linear has several slices."""
    default_penalties: bool
    """Penalties that the model's generation_config.json names are priced."""
    start_s: tuple[float, float] | None = None
    """Seconds of an engine start, and more per slot, where the calibration is of another version."""


@dataclass(frozen=True)
class Graphs:
    """What is captured."""

    step_above_256: int
    """Default sizes: 1, 2, 4, multiples of 8 to 256, then multiples of this to 512."""
    by_seqs: bool
    """No size above 2 * max_num_seqs; a smaller token budget is captured itself."""
    full_decode: bool
    """Full graphs for decodes beside the piecewise ones."""
    without_lora: bool
    """With LoRA, every size is captured without and with LoRA kernels."""


@dataclass(frozen=True)
class MemoryRules:
    """How one version turns GPU memory into KV blocks. Bytes are of one GPU."""

    version: str
    counts_reserved: bool
    """The weights count as what the allocator reserved (0.8.5: used device memory), not as what tensors hold. [code]"""
    counts_graphs: bool
    """The estimated CUDA graph memory comes out of the budget. [code] 0.20.2: on by default."""
    extra_vocab_rows: int
    """lora_extra_vocab_size: embedding rows for added tokens, per slot; gone in 0.20. [code]"""
    expert_lora: bool
    """The experts of a mixture get slots. [code]"""
    sampler_bytes_per_logit: int
    """Peak of the dummy sampler run, per sequence and vocabulary entry. 14 = bf16 logits (2), float32 logits,
    probabilities and noise (4 each): measured on Llama, Qwen and phi-4 [planner], and as the difference between the
    two models of [mn5]. For 0.8.5 it stands for the FlashInfer sampler of the official image; without FlashInfer that
    version sorts the logits, 39 bytes [explorer]."""
    sampler_buffer: bool
    """The top-k/top-p kernel keeps one float32 vocabulary row per SM. [code], confirmed by [planner]"""
    persistent_moe_workspace: bool
    """Workspaces of the fused experts stay allocated while the sampler runs. [planner] Mixtral, Qwen3-30B-A3B."""
    lora_logits_in_profile: bool
    """Logits of added tokens are part of the peak (0.5.0, which counted cached blocks too). [code] [mn5]"""
    non_torch_bytes: float
    """Memory outside PyTorch that the budget pays for."""
    non_torch_tp_bytes: float
    """The same with tensor parallelism: NCCL, custom all-reduce, symmetric memory."""
    context_bytes: float
    """CUDA context that the budget does not see; 0 where non_torch_bytes includes it."""
    context_tp_bytes: float
    graphs: Graphs


@dataclass(frozen=True)
class VllmVersion:
    """One version."""

    version: str
    models: ModelSupport
    defaults: Defaults
    scheduling: Scheduling
    execution: Execution
    memory: MemoryRules

    @property
    def graphs(self) -> Graphs:
        """What is captured."""
        return self.memory.graphs


V0_20 = VllmVersion(
    version="0.20",
    models=replace(KNOWN_MODELS, served_by="vLLM 0.20"),
    defaults=Defaults(
        allowed_lora_ranks=(1, 8, 16, 32, 64, 128, 256, 320, 512),
        max_lora_vocab=258_048,
        a100_gets_large_batch=False,
        fits_batch_defaults=True,
        async_scheduling=True,
        prefix_caching=True,
        gpu_memory_utilization=0.92,
    ),
    scheduling=Scheduling(reserve_full_prompt=True, skipped_first=True),
    execution=Execution(alternates=False, unused_lora_runs=False, expand_columns_sliced=64, default_penalties=False),
    memory=MemoryRules(
        version="0.20",
        counts_reserved=False,
        counts_graphs=True,
        extra_vocab_rows=0,
        expert_lora=KNOWN_MODELS.expert_lora,
        sampler_bytes_per_logit=14,
        sampler_buffer=True,
        persistent_moe_workspace=True,
        lora_logits_in_profile=False,
        non_torch_bytes=0.25 * _GIB,  # 0.24 to 0.27 with TP 1 [planner]
        non_torch_tp_bytes=2.10 * _GIB,  # 2.06 to 2.21 with TP 2 and 4 over NVLink [planner]; other links: not measured
        context_bytes=0.51 * _GIB,  # [planner]
        context_tp_bytes=1.53 * _GIB,  # [planner]
        graphs=Graphs(step_above_256=16, by_seqs=True, full_decode=True, without_lora=True),
    ),
)

_MODELS_0_8_5 = ModelSupport(
    served_by="vLLM 0.8.5",
    architectures=KNOWN_MODELS.architectures - {"GptOssForCausalLM"},
    embedding_architectures=LLAMA_LIKE,
    expert_lora=False,
)
V0_8_5 = VllmVersion(
    version="0.8.5",
    models=_MODELS_0_8_5,
    defaults=Defaults(
        allowed_lora_ranks=(8, 16, 32, 64, 128, 256, 320, 512),
        max_lora_vocab=257_024,
        a100_gets_large_batch=True,
        fits_batch_defaults=False,
        async_scheduling=False,
        prefix_caching=True,
        gpu_memory_utilization=0.9,
        pipeline_stages=False,
        fixed_flags=(
            ("enable_chunked_prefill", True),
            ("async_scheduling", False),
            ("specialize_active_lora", False),
            ("lora_target_modules", "all"),
        ),
    ),
    scheduling=Scheduling(reserve_full_prompt=False, skipped_first=False),
    execution=Execution(
        alternates=True,
        unused_lora_runs=True,
        expand_columns_sliced=128,
        default_penalties=True,
        # Graph capture on an H100: 65 s with 8 slots to 1,328 s with 352, so 35 to 60 s and 3.5 s per slot (public logs
        # of FerranAgulloLopez/GPULLMAdapterOptimization, commit bae36e2d, 2025-11-14).
        start_s=(40.0, 3.5),
    ),
    memory=MemoryRules(
        version="0.8.5",
        counts_reserved=True,
        counts_graphs=False,
        extra_vocab_rows=256,
        expert_lora=_MODELS_0_8_5.expert_lora,
        sampler_bytes_per_logit=14,
        sampler_buffer=False,
        persistent_moe_workspace=False,
        lora_logits_in_profile=False,
        non_torch_bytes=0.80e9,  # fitted to both models of [mn5]; 0.64 GiB on another H100 with 0.11 [explorer]
        non_torch_tp_bytes=0.80e9 + 1.44 * _GIB,  # TP 2 over TP 1: context 1.02 [planner], growth 0.42 [explorer]
        context_bytes=0.0,
        context_tp_bytes=0.0,
        graphs=Graphs(step_above_256=8, by_seqs=False, full_decode=False, without_lora=False),
    ),
)

VERSIONS = MappingProxyType({entry.version: entry for entry in (V0_20, V0_8_5)})
"""Those that a scenario may name."""

_MEASURED_ONLY = (
    replace(V0_20.memory, version="0.19", counts_graphs=False),  # the one that [planner] measured
    # The Llama-2 half of [mn5]; the bytes per logit are fitted to its rows without LoRA: that version sorts.
    replace(V0_8_5.memory, version="0.5.0", sampler_bytes_per_logit=27, lora_logits_in_profile=True),
)
"""Versions of which only start-ups were measured: they check the terms that scenarios' versions share with them."""
MEMORY_RULES = MappingProxyType(
    {rules.version: rules for rules in (*(entry.memory for entry in VERSIONS.values()), *_MEASURED_ONLY)}
)


def vllm_version(version: str, source: str = "<arguments>") -> VllmVersion:
    """The entry of a version, or of the minor version that it is a patch release of.

    Raises:
        ConfigError: a version that is not in the table.
    """
    found = VERSIONS.get(version) or VERSIONS.get(".".join(version.split(".")[:2]))
    if found is None:
        raise ConfigError(source, "engine.version", version, f"supported vLLM versions: {known_versions()}")
    return found


def known_versions() -> str:
    """The versions of the table, for messages."""
    return ", ".join(f'"{version}"' for version in VERSIONS)


def memory_rules(version: str, source: str = "<arguments>") -> MemoryRules:
    """The memory rules of a version, those of which only start-ups were measured included.

    Raises:
        ConfigError: a version without measurements.
    """
    rules = MEMORY_RULES.get(version)
    if rules is None:
        raise ConfigError(source, "engine.version", version, f"memory rules exist for: {', '.join(MEMORY_RULES)}")
    return rules
