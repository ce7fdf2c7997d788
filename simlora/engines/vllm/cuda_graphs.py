"""Which CUDA graphs a vLLM replica captures, and the memory they take."""

from __future__ import annotations

from simlora.memory.inputs import BASE_GRAPH_BYTES_PER_LAYER, LORA_GRAPH_BYTES_PER_LAYER
from simlora.memory.tensors import Shard
from simlora.scenario.engines.vllm_versions import Graphs

LARGEST_CAPTURE_TOKENS = 512
"""Default cap on captured sizes."""


def capture_sizes(rules: Graphs, max_num_seqs: int, max_num_batched_tokens: int, draft: int = 0) -> tuple[int, ...]:
    """Padded token counts, ascending: 1, 2, 4, multiples of 8 below 256, then multiples of the version's step.

    They end at min(512, max_num_batched_tokens) and, since 0.9, at 2 * max_num_seqs * (1 + draft); in 0.20 a token
    budget within that is captured itself (pull request 40734, April 2026: in the 0.20.2 wheel, not in 0.19).
    Source: `VllmConfig._set_cudagraph_sizes` in vllm/config/vllm.py of the 0.20.2 wheel, in vllm/config.py of 0.8.5.

    Args:
        draft: tokens that are proposed to each request in a step (speculative decoding).
    """
    limit = min(LARGEST_CAPTURE_TOKENS, max_num_batched_tokens)
    if rules.by_seqs:
        limit = min(limit, 2 * max_num_seqs * (1 + draft))
    sizes = {1, 2, 4, *range(8, 256, 8), *range(256, limit + 1, rules.step_above_256)}
    if rules.by_seqs:
        sizes.add(max_num_batched_tokens)
    return tuple(sorted(size for size in sizes if size <= limit))


def lora_graph_cases(max_loras: int, specialize_active_lora: bool) -> tuple[int, ...]:
    """Counts of active adapters that graphs are captured for: max_loras + 1 (the base model beside all of them), and
    with specialize_active_lora the powers of two up to max_loras.

    Source: `get_captured_lora_counts` in vllm/lora/utils.py of the 0.20.2 wheel.
    """
    powers = (1 << bit for bit in range(max_loras.bit_length()))
    return (*(powers if specialize_active_lora else ()), max_loras + 1)


def graph_counts(shard: Shard) -> tuple[int, int]:
    """(graphs without LoRA kernels, graphs with).

    Source: `CudagraphDispatcher.initialize_cudagraph_keys` in vllm/v1/cudagraph_dispatcher.py of the 0.20.2 wheel.
    """
    settings, rules = shard.settings, shard.rules.graphs
    if settings.enforce_eager:
        return 0, 0
    decode_tokens = 1 + settings.draft_tokens
    sizes = capture_sizes(rules, settings.max_num_seqs, settings.max_num_batched_tokens, settings.draft_tokens)
    per_case = len(sizes)
    if rules.full_decode:
        per_case += sum(decode_tokens <= size <= decode_tokens * settings.max_num_seqs for size in sizes)
    if not settings.enable_lora:
        return per_case, 0
    if not rules.without_lora:
        return 0, per_case
    return per_case, per_case * len(lora_graph_cases(settings.max_loras, settings.specialize_active_lora))


def graph_bytes(shard: Shard) -> float:
    """Memory of all graphs on one GPU."""
    base, lora = graph_counts(shard)
    return shard.layers * (base * BASE_GRAPH_BYTES_PER_LAYER + lora * LORA_GRAPH_BYTES_PER_LAYER)
