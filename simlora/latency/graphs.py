"""Which tokens of a vLLM step run in a captured CUDA graph, and padded to what size."""

from __future__ import annotations

from typing import Literal

from simlora.latency.execution import V0_20, ExecutionRules

Regime = Literal["graph", "piecewise", "eager"]

LARGEST_CAPTURE_TOKENS = 512
"""vLLM's default cap on captured sizes (vllm/config/compilation.py, v0.20)."""


def capture_sizes(max_num_seqs: int, max_num_batched_tokens: int, rules: ExecutionRules = V0_20) -> tuple[int, ...]:
    """vLLM's default sizes: 1, 2, 4, 8 to 248 by 8, 256 to 512 by 16 (0.8.5: by 8); none above 512, the token budget
    or, since 0.9, 2 max_num_seqs."""
    largest = min(LARGEST_CAPTURE_TOKENS, max_num_batched_tokens)
    if rules.captures_by_seqs:
        largest = min(largest, 2 * max_num_seqs)
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, LARGEST_CAPTURE_TOKENS + 1, rules.capture_step_above_256)]
    return tuple(size for size in sizes if size <= largest)


def padded_tokens(sizes: tuple[int, ...]) -> list[int]:
    """table[n] = smallest captured size that holds n tokens; len(table) - 1 is the largest captured size."""
    table = [0]
    for size in sizes:
        table.extend([size] * (size + 1 - len(table)))
    return table


def active_adapter_grid(adapters: int, max_loras: int, specialize: bool) -> int:
    """Third axis of the LoRA kernels' grid: slots + 1, or the captured count of active adapters when specialised.

    With specialisation the count is rounded up to a power of two not above max_loras, else to max_loras + 1.
    """
    if not specialize:
        return max_loras + 1
    size = 1
    while size < adapters:
        size *= 2
    return size if size <= max_loras else max_loras + 1
