"""What differs between the supported vLLM versions, as far as a scenario's defaults and limits are concerned.

Sources, read in the vLLM repository:
- batch defaults: `EngineArgs._set_default_args_v1` of April 2025 (0.8.5: 70 GiB or more, A100 included) and
  `EngineArgs.get_batch_defaults` of 2026 (0.20: A100 excluded since pull request 17885, May 2025), API-server context.
- chunked prefill: `_set_default_args_v1` of 0.8.5 turns it on whatever the flag says.
- ranks: `LoRAConfig.__post_init__` (0.8.5), `MaxLoRARanks` in vllm/config/lora.py (0.20).
- vocabulary: `LogitsProcessorWithLoRA.create_lora_weights` (257,024 and 258,048).
- Qwen3 lists embedding modules since pull request 29816 (December 2025); gpt-oss exists since 0.10.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from simlora.scenario.gpu import GpuSpec


@dataclass(frozen=True)
class VersionRules:
    """Defaults and limits of one vLLM version."""

    version: str
    allowed_lora_ranks: tuple[int, ...]
    max_lora_vocab: int
    """Largest vocabulary that LoRA on lm_head supports."""
    a100_gets_large_batch: bool
    fits_batch_defaults: bool
    """A default limit shrinks to what the others allow, instead of being refused."""
    async_scheduling: bool
    prefix_caching: bool
    gpu_memory_utilization: float
    """Default share of GPU memory. Source: vllm/config/cache.py of the 0.20.2 wheel (0.92), of 0.8.5 (0.9)."""
    architectures: frozenset[str]
    embedding_architectures: frozenset[str]
    """Classes that list embed_tokens and lm_head as LoRA modules."""
    expert_lora: bool
    """LoRA on the experts of a mixture is wrapped."""
    fixed_flags: tuple[tuple[str, Any], ...] = ()
    """(field of the engine, its only value) where the version has no such choice."""

    def batch_defaults(self, gpu: GpuSpec) -> tuple[int, int]:
        """(max_num_batched_tokens, max_num_seqs) of the API server on that GPU."""
        large = gpu.memory_bytes >= 70 * 2**30 and (self.a100_gets_large_batch or not gpu.name.startswith("a100"))
        return (8192, 1024) if large else (2048, 256)


_LLAMA_LIKE = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM"})
_QWEN3 = frozenset({"Qwen3ForCausalLM", "Qwen3MoeForCausalLM"})

V0_20 = VersionRules(
    version="0.20",
    allowed_lora_ranks=(1, 8, 16, 32, 64, 128, 256, 320, 512),
    max_lora_vocab=258_048,
    a100_gets_large_batch=False,
    fits_batch_defaults=True,
    async_scheduling=True,
    prefix_caching=True,
    gpu_memory_utilization=0.92,
    architectures=_LLAMA_LIKE | _QWEN3 | {"Qwen2ForCausalLM", "GptOssForCausalLM"},
    embedding_architectures=_LLAMA_LIKE | _QWEN3,
    expert_lora=True,
)
V0_8_5 = VersionRules(
    version="0.8.5",
    allowed_lora_ranks=(8, 16, 32, 64, 128, 256, 320, 512),
    max_lora_vocab=257_024,
    a100_gets_large_batch=True,
    fits_batch_defaults=False,
    async_scheduling=False,
    prefix_caching=True,
    gpu_memory_utilization=0.9,
    architectures=_LLAMA_LIKE | _QWEN3 | {"Qwen2ForCausalLM"},
    embedding_architectures=_LLAMA_LIKE,
    expert_lora=False,
    fixed_flags=(
        ("enable_chunked_prefill", True),
        ("async_scheduling", False),
        ("specialize_active_lora", False),
        ("lora_target_modules", "all"),
    ),
)

VERSIONS = MappingProxyType({rules.version: rules for rules in (V0_20, V0_8_5)})
