"""Which CUDA graphs a replica captures, and the memory they take."""

from __future__ import annotations

from simlora.memory.tensors import Shard
from simlora.memory.vllm_rules import BASE_GRAPH_BYTES_PER_LAYER, LORA_GRAPH_BYTES_PER_LAYER, MemoryRules

_LARGEST = 512


def capture_sizes(rules: MemoryRules, max_num_seqs: int, max_num_batched_tokens: int) -> tuple[int, ...]:
    """Padded token counts, ascending: 1, 2, 4, multiples of 8 below 256, then multiples of the version's step.

    They end at min(512, max_num_batched_tokens), since 0.19 also at 2 * max_num_seqs; a token budget below that is
    captured itself. Source: vLLM `VllmConfig._set_cudagraph_sizes`.
    """
    limit = min(_LARGEST, max_num_batched_tokens)
    if rules.full_decode_graphs:
        limit = min(limit, 2 * max_num_seqs)
    sizes = {size for size in (1, 2, 4) if size <= limit}
    sizes.update(range(8, min(limit + 1, 256), 8))
    sizes.update(range(256, limit + 1, rules.graph_step_above_256))
    if rules.full_decode_graphs and max_num_batched_tokens <= limit:
        sizes.add(max_num_batched_tokens)
    return tuple(sorted(sizes))


def lora_graph_cases(max_loras: int, specialize_active_lora: bool) -> tuple[int, ...]:
    """Counts of active adapters that graphs are captured for: max_loras + 1 (the base model beside all of them), and
    with specialize_active_lora the powers of two up to max_loras. Source: vLLM `get_captured_lora_counts`."""
    cases = {max_loras + 1}
    if specialize_active_lora:
        power = 1
        while power <= max_loras:
            cases.add(power)
            power *= 2
    return tuple(sorted(cases))


def graph_counts(shard: Shard) -> tuple[int, int]:
    """(graphs without LoRA kernels, graphs with)."""
    settings, rules = shard.settings, shard.rules
    if settings.enforce_eager:
        return 0, 0
    sizes = capture_sizes(rules, settings.max_num_seqs, settings.max_num_batched_tokens)
    per_case = len(sizes)
    if rules.full_decode_graphs:
        per_case += sum(1 for size in sizes if size <= settings.max_num_seqs)
    if not settings.enable_lora:
        return per_case, 0
    if not rules.specialized_lora_graphs:
        return 0, per_case
    return per_case, per_case * len(lora_graph_cases(settings.max_loras, settings.specialize_active_lora))


def graph_bytes(shard: Shard) -> float:
    """Memory of all graphs on one GPU."""
    base, lora = graph_counts(shard)
    return shard.layers * (base * BASE_GRAPH_BYTES_PER_LAYER + lora * LORA_GRAPH_BYTES_PER_LAYER)
