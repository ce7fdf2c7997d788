"""Changes that are worth trying on several engines."""

from __future__ import annotations

from collections.abc import Iterator

from simlora.engines.spec import Option, Shares
from simlora.scenario.root import Scenario

FULL_GPU = 0.95
"""Largest share of GPU memory that is proposed."""


def served_adapters(scenario: Scenario) -> int:
    """Adapters that the engine serves as such."""
    return scenario.adapters.count if scenario.engine.enable_lora else 0


def more_memory(scenario: Scenario, share: Shares) -> Iterator[Option]:
    """A larger share of the GPU for the engine."""
    if scenario.engine.gpu_memory_utilization < FULL_GPU:
        yield share["queue_kv"], {"engine.gpu_memory_utilization": FULL_GPU}


def buffers(scenario: Scenario, share: Shares) -> Iterator[Option]:
    """Adapters that stay on the GPU."""
    now, adapters = scenario.engine.max_loras, served_adapters(scenario)
    if adapters > now:
        yield share["queue_slots"] + share["load"], {"engine.max_loras": min(2 * now, adapters)}
    if adapters and now // 2 > len(scenario.adapters.pinned):
        yield share["queue_kv"], {"engine.max_loras": now // 2}
