"""A request inside a naive engine: what every oracle keeps of it. What decides anything is each oracle's own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(eq=False)
class NaiveJob:
    """What was asked, and what has happened to it; times are seconds, None until they happen."""

    index: int
    adapter: int
    rank: int
    prompt: int
    output: int
    arrival_s: float
    rejected: bool = False
    admitted_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    preemptions: int = 0
    load_tier: int = 0
    """0 on the GPU, 1 host, 2 disk, 3 remote."""
