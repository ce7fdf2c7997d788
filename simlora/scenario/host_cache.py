"""Host memory of one replica's adapter cache: a whole copy of each cached adapter for every worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simlora.scenario.lora_modules import adapter_bytes

if TYPE_CHECKING:
    from simlora.scenario.root import Scenario


def host_cache_bytes(scenario: Scenario, cached: int) -> int:
    """Host bytes of one replica when the `cached` largest adapters are in memory: all workers, each at its own rank."""
    total, left = 0, cached
    for rank, count in sorted(scenario.adapters.rank_counts().items(), reverse=True):
        taken = min(count, left)
        total += taken * adapter_bytes(scenario.model_spec, rank, scenario.adapter_modules)
        left -= taken
    return total * scenario.engine.tensor_parallel_size


def largest_host_cache(scenario: Scenario) -> int:
    """The largest max_cpu_loras whose adapters fit storage.host_gib, whichever adapters they are."""
    left, fit = scenario.storage.host_gib * 2**30 / scenario.engine.tensor_parallel_size, 0
    for rank, count in sorted(scenario.adapters.rank_counts().items(), reverse=True):
        size = adapter_bytes(scenario.model_spec, rank, scenario.adapter_modules)
        taken = min(count, int(left // size))
        fit, left = fit + taken, left - taken * size
        if taken < count:
            break
    return fit
