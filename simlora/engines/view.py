"""What a router sees of a replica: a scrape, possibly stale."""

from __future__ import annotations

from typing import NamedTuple


class View(NamedTuple):
    """State of one replica at a scrape."""

    running: int
    waiting: int
    kv_usage: float
    """Fraction of the KV blocks in use."""
    adapters: frozenset[int]
    """Adapters with requests in the running batch."""
    max_loras: int
    outstanding: int
    """Requests sent to it and not finished."""
    idle_s: float = 0.0
    """How long it has had nothing to do."""
