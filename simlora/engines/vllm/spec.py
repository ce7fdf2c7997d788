"""vLLM as the rest of simlora sees it."""

from __future__ import annotations

from simlora.engines.spec import Changes, EngineSpec
from simlora.engines.vllm.advice import memory_advice, options
from simlora.engines.vllm.build import make_replica
from simlora.engines.vllm.fit import vllm_shortages
from simlora.engines.vllm.ledger import vllm_ledger
from simlora.engines.vllm.profile import vllm_profile
from simlora.scenario.engines.vllm import largest_host_cache
from simlora.scenario.engines.vllm_versions import V0_20
from simlora.scenario.root import Scenario

DEFAULT_SLOTS = 8
"""Slots where the other engine does not count places for adapters: SGLang's own default."""


def _with_places(scenario: Scenario, slots: int | None) -> Changes:
    """vLLM has no useful defaults: slots of the smallest rank that holds every adapter, and all of them in host memory
    as far as it goes, which is what the other engines do by themselves."""
    count = scenario.adapters.count
    if not count or not scenario.engine.enable_lora:
        return {}
    slots = slots or min(DEFAULT_SLOTS, count)
    largest = max(rank for rank, number in scenario.adapters.rank_counts().items() if number > 0)
    rank = min((rank for rank in V0_20.defaults.allowed_lora_ranks if rank >= largest), default=largest)
    cached = max(min(count, largest_host_cache(scenario)), slots)
    return {"max_loras": slots, "max_lora_rank": rank, "max_cpu_loras": cached}


SPEC = EngineSpec(
    kind="vllm",
    build_replica=make_replica,
    ledger=vllm_ledger,
    shortages=vllm_shortages,
    profile=vllm_profile,
    options=options,
    adapter_memory=lambda scenario: (
        f"{scenario.engine.max_loras} slots of rank {scenario.engine.max_lora_rank} on each GPU"
    ),
    slot_rank=lambda scenario: int(scenario.engine.max_lora_rank),
    memory_advice=memory_advice,
    with_places=_with_places,
)
