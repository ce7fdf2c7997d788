"""Which steps run in a captured CUDA graph, and padded to what size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from simlora.latency.step import StepPlan

Regime = Literal["graph", "piecewise", "eager"]


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


class Captured(NamedTuple):
    """One graph."""

    tokens: int
    """Padded rows."""
    rank: int
    """Rank that it was captured for; 0: the base model, or a graph that serves every rank."""
    at_start: bool
    """Captured when the engine starts."""


def decode_graphs(sizes: tuple[int, ...]) -> Callable[[StepPlan], Captured | None]:
    """The graph of a step where decodes alone have graphs of these sizes, captured at the start and for every rank."""
    table = [Captured(tokens, 0, True) for tokens in padded_tokens(sizes)]

    def graph(plan: StepPlan) -> Captured | None:
        return None if plan.prefills or plan.num_tokens >= len(table) else table[plan.num_tokens]

    return graph
