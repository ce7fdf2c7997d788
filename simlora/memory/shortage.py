"""Why an engine does not start, and the words for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

WEIGHTS, SLOTS, CONTEXT, UTILIZATION, OVERRIDE = "weights", "LoRA slots", "context length", "utilization", "KV override"
ADAPTERS, PREFILL = "adapter memory", "prefill"
"""Terms that can keep an engine from starting."""


class Shortage(NamedTuple):
    """Why an engine does not start: the binding term, the key to change, and the largest value that fits."""

    term: str
    key: str
    value: object
    largest: int | float | None
    """None: no value of that key helps. Where only a larger value helps, the smallest that does."""
    message: str


def largest_that(low: int, high: int, ok: Callable[[int], bool]) -> int | None:
    """The largest value in low .. high that is ok, if ok holds up to some value and not beyond; None if none is."""
    if high < low or not ok(low):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        if ok(middle):
            low = middle
        else:
            high = middle - 1
    return low


def gb(value: float) -> str:
    """Bytes as decimal gigabytes for messages."""
    return f"{value / 1e9:.1f} GB"
