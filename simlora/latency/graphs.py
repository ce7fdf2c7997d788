"""Which tokens of a vLLM step run in a captured CUDA graph, and padded to what size."""

from __future__ import annotations

from typing import Literal

Regime = Literal["graph", "piecewise", "eager"]

LARGEST_CAPTURE_TOKENS = 512
"""vLLM's default cap on captured sizes (vllm/config/compilation.py, v0.20)."""


def capture_sizes(max_num_seqs: int, max_num_batched_tokens: int) -> tuple[int, ...]:
    """vLLM's default sizes: 1, 2, 4, 8 to 248 by 8, 256 to 512 by 16; none above min(2 max_num_seqs, 512, budget)."""
    largest = min(2 * max_num_seqs, LARGEST_CAPTURE_TOKENS, max_num_batched_tokens)
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, LARGEST_CAPTURE_TOKENS + 1, 16)]
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
