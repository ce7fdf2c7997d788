"""The parts of a vLLM replica."""

from __future__ import annotations

from simlora.engines.active_adapters import ActiveAdapters
from simlora.engines.decode_batch import DecodeBatch
from simlora.engines.inputs import Inputs
from simlora.engines.overlap_loading import overlap_loading
from simlora.engines.request_columns import RequestColumns
from simlora.engines.vllm.batch import VllmLimits
from simlora.engines.vllm.lanes import PipelineScheduler
from simlora.engines.vllm.overlap import OverlappedScheduler
from simlora.engines.vllm.pipeline import PipelineReplica
from simlora.engines.vllm.prefix_cache import PrefixCache
from simlora.engines.vllm.replica import VllmReplica
from simlora.engines.vllm.scheduler import VllmScheduler
from simlora.engines.vllm.speculative import SpeculativeBatch
from simlora.errors import ConfigError
from simlora.memory.residents import AdapterTiers, EvictionPolicy, Lru, ResidentSet, WeightedLru
from simlora.scenario.engines.vllm_versions import vllm_version
from simlora.scenario.root import Scenario


def make_replica(inputs: Inputs, index: int, requests: RequestColumns, coalesce: bool) -> VllmReplica:
    """One vLLM replica. coalesce=False plays step by step."""
    scenario, engine = inputs.scenario, inputs.scenario.engine
    lora = engine.enable_lora and inputs.adapters.count > 0
    rules = vllm_version(engine.version, scenario.source).scheduling
    limits = VllmLimits(
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        kv_blocks=inputs.ledger.kv_units,
        block_size=engine.block_size,
        max_loras=engine.max_loras if engine.enable_lora else 0,
        max_lora_rank=engine.max_lora_rank,
        async_scheduling=engine.async_scheduling,
        enable_chunked_prefill=engine.enable_chunked_prefill,
        reserve_full_prompt=rules.reserve_full_prompt,
        skipped_first=rules.skipped_first,
        pinned=frozenset(scenario.adapters.pinned) if lora else frozenset(),
    )
    tiers = _tiers(inputs) if lora else None
    cache = None
    if engine.enable_prefix_caching and inputs.requests.prefix is not None:
        cache = PrefixCache(inputs.requests.prefix_block_tokens, engine.block_size, requests)
    if engine.pipeline_parallel_size > 1:
        lanes = PipelineScheduler(limits, requests, tiers, engine.pipeline_parallel_size, cache)
        return PipelineReplica(index, lanes, inputs.latency)
    decodes, ranks = _decodes(scenario), None if engine.kernels == "padded" else ActiveAdapters()
    if tiers is not None and engine.adapter_loading.overlap:
        copies, prefetch = overlap_loading(inputs), engine.adapter_loading.prefetch
        scheduler: VllmScheduler = OverlappedScheduler(limits, requests, tiers, copies, prefetch, decodes, cache, ranks)
    else:
        scheduler = VllmScheduler(limits, requests, tiers, decodes, cache, ranks)
    return VllmReplica(index, scheduler, inputs.latency, coalesce, inputs.latency.price_table())


def _decodes(scenario: Scenario) -> DecodeBatch:
    engine = scenario.engine
    if engine.speculative is None:
        return DecodeBatch(engine.block_size)
    draft = engine.speculative.num_speculative_tokens
    needed = engine.max_num_seqs * (1 + draft)
    if engine.max_num_batched_tokens < needed:
        allowed = f"at least max_num_seqs ({engine.max_num_seqs}) x (1 + num_speculative_tokens) = {needed}"
        raise ConfigError(scenario.source, "engine.max_num_batched_tokens", engine.max_num_batched_tokens, allowed)
    return SpeculativeBatch(engine.block_size, draft, engine.speculative.acceptance_rate, scenario.seed)


def _tiers(inputs: Inputs) -> AdapterTiers:
    """Slots and host cache; pinned adapters are loaded before the run begins."""
    scenario, engine = inputs.scenario, inputs.scenario.engine
    pinned, initial = scenario.adapters.pinned, inputs.initial
    slots = ResidentSet(engine.max_loras, _eviction(engine.eviction), pinned)
    tiers = AdapterTiers(
        slots,
        ResidentSet(engine.max_cpu_loras, _eviction(engine.eviction), pinned),
        scenario.storage.remote is not None,
    )
    tiers.preload(initial.host, [a for a in initial.gpu if a not in pinned] + list(pinned))
    return tiers


def _eviction(kind: str) -> EvictionPolicy:
    return WeightedLru() if kind == "weighted-lru" else Lru()
