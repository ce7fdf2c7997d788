"""Which steps of LoRAX and SGLang run in a captured CUDA graph, and padded to what size."""

from __future__ import annotations

from typing import NamedTuple

from simlora.latency.step import StepPlan

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
