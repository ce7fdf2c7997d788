"""Which steps run in a captured CUDA graph, and padded to what size."""

from __future__ import annotations

from typing import Literal, NamedTuple

from simlora.latency.execution import V0_20, ExecutionRules
from simlora.latency.step import StepPlan

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


LORAX_AT_START = (1, 2, 3, 4, 8, 16, 32)
LORAX_LARGEST = 128
"""compile_max_batch_size."""
LORAX_STEP = 32
"""Larger batches are padded to multiples of it, and captured when they first come."""
LORAX_RANKS = (0, 8, 16, 32, 64)


class Captured(NamedTuple):
    """One graph."""

    tokens: int
    """Padded rows."""
    rank: int
    """Rank that it was captured for; 0: the base model, or a graph that serves every rank."""
    at_start: bool
    """Captured when the engine starts."""


def lorax_graph(plan: StepPlan) -> Captured | None:
    """The graph of a decode step; None: eager. Mixed ranks, other ranks and large batches have none."""
    rank = plan.mix.max_rank if plan.mix is not None and plan.num_adapters else 0
    one_rank = plan.mix is None or plan.mix.distinct_ranks <= 1
    if plan.prefills or plan.num_tokens > LORAX_LARGEST or not one_rank or rank not in LORAX_RANKS:
        return None
    for size in LORAX_AT_START:
        if plan.num_tokens <= size:
            return Captured(size, rank, True)
    return Captured(-(-plan.num_tokens // LORAX_STEP) * LORAX_STEP, rank, False)


def sglang_sizes(largest: int) -> tuple[int, ...]:
    """SGLang's captured batch sizes: 1, 2, 4, 8, 12, by 8 to 256, by 16 above. Source: server_args.py."""
    sizes = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, largest + 1, 32)]
    return tuple(size for size in sizes if size <= largest)
