"""The parts of a LoRAX replica."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from simlora.engines.inputs import Inputs
from simlora.engines.lorax.batching import LoraxLimits
from simlora.engines.lorax.engine import LoraxEngine
from simlora.engines.lorax.loader import Loader, LoaderTimes
from simlora.engines.lorax.memory import adapter_cost_fraction
from simlora.engines.lorax.profile import padded_rank
from simlora.engines.lorax.ranks import LazyGraphs
from simlora.scenario.engines.lorax import LoraxConfig
from simlora.scenario.lora_modules import adapter_bytes
from simlora.scenario.root import Scenario

HEALTH_BLOCKS = 1
"""The block allocator keeps block 0 for health checks."""


def make_engine(inputs: Inputs) -> LoraxEngine:
    """One LoRAX replica. Nothing is active when it starts; adapters.preload means that all adapters are on its disk,
    and in host memory where that is a cache."""
    scenario, engine = inputs.scenario, inputs.scenario.engine
    assert isinstance(engine, LoraxConfig)
    known = range(1, scenario.adapters.count + 1) if scenario.adapters.preload else ()
    loader = Loader(_times(inputs, engine), known, known if engine.host_cache else ())
    return LoraxEngine(_limits(inputs, engine), loader, _padding(engine), _graphs(inputs))


def _limits(inputs: Inputs, engine: LoraxConfig) -> LoraxLimits:
    tokens = inputs.ledger.usable_kv_tokens
    if engine.max_batch_total_tokens is not None:
        tokens = min(tokens, engine.max_batch_total_tokens)
    return LoraxLimits(
        kv_blocks=tokens // engine.block_size - HEALTH_BLOCKS,
        block_size=engine.block_size,
        max_batch_prefill_tokens=engine.max_batch_prefill_tokens,
        waiting_served_ratio=engine.waiting_served_ratio,
        max_waiting_tokens=engine.max_waiting_tokens,
        max_concurrent_requests=engine.max_concurrent_requests,
        max_active_adapters=engine.max_active_adapters,
        adapter_cycle_time_s=engine.adapter_cycle_time_s,
        chunked_prefill=engine.chunked_prefill,
        eager_prefill=engine.eager_prefill,
    )


def _times(inputs: Inputs, engine: LoraxConfig) -> LoaderTimes:
    scenario = inputs.scenario

    @cache
    def cost(adapter: int, rank: int) -> float:
        return adapter_cost_fraction(scenario, rank, adapter)

    return LoaderTimes(
        load_s=inputs.latency.load_s,
        cost=cost,
        download_s=_download_s(scenario),
        host_cache=engine.host_cache,
        resident=frozenset({0, *engine.preloaded_adapter_ids}),
    )


def _download_s(scenario: Scenario) -> Callable[[int], float] | None:
    """From remote storage (HTTP or S3) to the replica's disk, the whole file by one reader."""
    remote = scenario.storage.remote
    if remote is None:
        return None
    latency_s, bytes_per_s = remote.latency_s, remote.bandwidth_gib_s * 2**30

    @cache
    def seconds(rank: int) -> float:
        return latency_s + adapter_bytes(scenario.model_spec, rank, scenario.adapter_modules) / bytes_per_s

    return seconds


def _padding(engine: LoraxConfig) -> Callable[[int], int]:
    @cache
    def padded(rank: int) -> int:
        return padded_rank(rank, engine.tensor_parallel_size)

    return padded


def _graphs(inputs: Inputs) -> LazyGraphs:
    return LazyGraphs(inputs.latency.graph_key, inputs.latency.lazy_capture_s)
