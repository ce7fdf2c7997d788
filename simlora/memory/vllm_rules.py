"""What the byte ledger takes from measurements, per vLLM version: one table, each number with its source.

Sources
- [code]     the vLLM source of the version: gpu_worker.determine_available_memory, gpu_model_runner.profile_run,
             lora/layers, sample/ops/topk_topp_sampler.
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

from simlora.errors import ConfigError

_GIB = 2**30


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
    graph_step_above_256: int
    """Default capture sizes: 1, 2, 4, multiples of 8 to 256, then multiples of this to 512. [code]"""
    full_decode_graphs: bool
    """Captures full graphs for decode beside the piecewise ones. [code]"""
    specialized_lora_graphs: bool
    """With LoRA, every size is captured without and with LoRA kernels. [code]"""


BASE_GRAPH_BYTES_PER_LAYER = 237e3
"""One CUDA graph without LoRA kernels, per layer: vLLM estimates 102 graphs of models of 28 to 80 layers at 0.0225 GiB
per layer (0.019 to 0.026). [planner]"""
LORA_GRAPH_BYTES_PER_LAYER = 314e3
"""One CUDA graph with LoRA kernels, per layer: 86 of them cost 0.62 GB (8 slots of rank 16) and 1.11 GB (32 of rank 64)
on Llama-3.1-8B. vLLM multiplies one sample of 2 MiB granularity, so the mean of the two is used. [h200]"""
FORWARD_HIDDEN_COPIES = 4
"""Copies of the hidden states alive at the peak of the forward pass beside the MLP's own tensors: 4.2 on CodeLlama-7B
and on Granite-8B. [planner]"""
PIPELINE_HIDDEN_COPIES = 2
"""Hidden states and residual that a pipeline stage receives. [planner] with PP 4."""
SAMPLER_FIXED_BYTES = 59e6
"""Alive beside one copy of the hidden states while the sampler runs (cuBLAS workspace of 32 MiB, small buffers): 0.055
GiB alike for Llama 8B and 70B, Qwen 7B and 72B, phi-4. [planner]"""

V0_20 = MemoryRules(
    version="0.20",
    counts_reserved=False,
    counts_graphs=True,
    extra_vocab_rows=0,
    expert_lora=True,
    sampler_bytes_per_logit=14,
    sampler_buffer=True,
    persistent_moe_workspace=True,
    lora_logits_in_profile=False,
    non_torch_bytes=0.25 * _GIB,  # 0.24 to 0.27 with TP 1 [planner]
    non_torch_tp_bytes=2.10 * _GIB,  # 2.06 to 2.21 with TP 2 and 4 over NVLink [planner]; other links: not measured
    context_bytes=0.51 * _GIB,  # [planner]
    context_tp_bytes=1.53 * _GIB,  # [planner]
    graph_step_above_256=16,
    full_decode_graphs=True,
    specialized_lora_graphs=True,
)
V0_19 = replace(V0_20, version="0.19", counts_graphs=False)
"""Not a version of scenarios: the one that [planner] measured, to check the terms that 0.20 shares with it."""
V0_8_5 = MemoryRules(
    version="0.8.5",
    counts_reserved=True,
    counts_graphs=False,
    extra_vocab_rows=256,
    expert_lora=False,
    sampler_bytes_per_logit=14,
    sampler_buffer=False,
    persistent_moe_workspace=False,
    lora_logits_in_profile=False,
    non_torch_bytes=0.80e9,  # one number fitted to both models of [mn5]; 0.64 GiB on another H100 with 0.11 [explorer]
    non_torch_tp_bytes=0.80e9 + 1.44 * _GIB,  # TP 2 over TP 1: context 1.02 [planner], growth 0.42 [explorer]
    context_bytes=0.0,
    context_tp_bytes=0.0,
    graph_step_above_256=8,
    full_decode_graphs=False,
    specialized_lora_graphs=False,
)
V0_5_0 = replace(
    V0_8_5,
    version="0.5.0",
    sampler_bytes_per_logit=27,  # fitted to the rows of [mn5] without LoRA; that version sorts
    lora_logits_in_profile=True,
)
"""Not a version of scenarios: the Llama-2 half of [mn5]."""

MEMORY_RULES = MappingProxyType({rules.version: rules for rules in (V0_20, V0_19, V0_8_5, V0_5_0)})


def memory_rules(version: str, source: str = "<arguments>") -> MemoryRules:
    """The rules of a version. Raises ConfigError for a version without measurements."""
    rules = MEMORY_RULES.get(version)
    if rules is None:
        raise ConfigError(source, "engine.version", version, f"memory rules exist for: {', '.join(MEMORY_RULES)}")
    return rules
