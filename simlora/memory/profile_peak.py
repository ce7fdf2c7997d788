"""Peak of PyTorch memory above the weights in vLLM's profiling run.

The run sends max_num_batched_tokens tokens of max_num_seqs sequences through the model, with all slots in use, then one
token of each sequence through lm_head and the sampler.
"""

from __future__ import annotations

from simlora.memory.tensors import Shard

FORWARD_HIDDEN_COPIES = 4
"""Copies of the hidden states alive at the peak of the forward pass beside the MLP's own tensors: 4.2 on CodeLlama-7B
and on Granite-8B. [planner], see scenario/engines/vllm_versions.py"""
PIPELINE_HIDDEN_COPIES = 2
"""Hidden states and residual that a pipeline stage receives. [planner] with PP 4."""
SAMPLER_FIXED_BYTES = 59e6
"""Alive beside one copy of the hidden states while the sampler runs (cuBLAS workspace of 32 MiB, small buffers): 0.055
GiB alike for Llama 8B and 70B, Qwen 7B and 72B, phi-4. [planner]"""

_LEGACY_REUSED_BYTES = 0.26e9
"""0.5.0: blocks of the forward pass that its LoRA logits reuse; fitted, alike for Llama-2 7B and 13B."""


def profile_peak_bytes(shard: Shard, sm_count: int) -> float:
    """The larger of the forward pass and the sampler, and what stays allocated through both."""
    workspace = _moe_workspace(shard)
    if shard.rules.persistent_moe_workspace and shard.model.quantized_weight_bytes is None:
        return max(_forward(shard), _sampler(shard, sm_count)) + workspace
    return max(_forward(shard) + workspace, _sampler(shard, sm_count)) + _legacy_lora_logits(shard)


def _forward(shard: Shard) -> float:
    model, tokens, width = shard.model, shard.settings.max_num_batched_tokens, shard.model.dtype_bytes
    copies = FORWARD_HIDDEN_COPIES + (PIPELINE_HIDDEN_COPIES if shard.settings.pipeline_parallel_size > 1 else 0)
    mlp = 0 if model.is_moe else 3 * shard.ffn  # gate, up and their product
    attention = 2 * shard.q + 2 * shard.kv
    return tokens * (width * (copies * model.hidden_size + max(mlp, attention)) + _lora_bytes_per_token(shard))


def _lora_bytes_per_token(shard: Shard) -> float:
    """Float32 shrink results of the three slices of qkv; for experts also the cached shrink and expand results."""
    settings = shard.settings
    if not settings.enable_lora:
        return 0.0
    dense = 3 * settings.max_lora_rank * 4
    if not (shard.model.is_moe and shard.rules.expert_lora):
        return dense
    return dense + 2 * shard.model.num_experts_per_tok * (settings.max_lora_rank + shard.ffn) * shard.model.dtype_bytes


def _moe_workspace(shard: Shard) -> float:
    """Inputs and outputs of the two grouped GEMMs, one row per token and chosen expert."""
    model = shard.model
    if not model.is_moe:
        return 0.0
    rows = shard.settings.max_num_batched_tokens * model.num_experts_per_tok
    widths = max(2 * shard.ffn, model.hidden_size) + max(shard.ffn, model.hidden_size)
    return float(rows * widths * model.dtype_bytes)


def _sampler(shard: Shard, sm_count: int) -> float:
    if not shard.last_stage:
        return 0.0
    settings, rules = shard.settings, shard.rules
    vocab = shard.model.vocab_size + (rules.extra_vocab_rows if shard.has_embedding_lora else 0)
    rows = _sequences(shard)
    hidden = settings.max_num_batched_tokens * shard.model.hidden_size * shard.model.dtype_bytes
    buffer = min(sm_count, rows) * vocab * 4 if rules.sampler_buffer else 0
    return rows * vocab * rules.sampler_bytes_per_logit + buffer + hidden + SAMPLER_FIXED_BYTES


def _legacy_lora_logits(shard: Shard) -> float:
    """0.5.0 computes logits of every slot's added tokens, twice, in blocks that stay cached. Once one of them is as
    large as the sampler's 8-byte index tensor, the sampler reuses it."""
    if not (shard.rules.lora_logits_in_profile and shard.has_embedding_lora and shard.last_stage):
        return 0.0
    rows = _sequences(shard)
    logits = (shard.settings.max_loras + 1) * shard.rules.extra_vocab_rows * rows * shard.model.dtype_bytes
    index = 8 * rows * shard.model.vocab_size
    return float(index) if logits >= index else max(2 * logits - _LEGACY_REUSED_BYTES, 0.0)


def _sequences(shard: Shard) -> int:
    return min(shard.settings.max_num_seqs, shard.settings.max_num_batched_tokens)
