"""S-LoRA as the rest of simlora sees it."""

from __future__ import annotations

from collections.abc import Iterator

from simlora.engines.options import more_memory, served_adapters
from simlora.engines.slora.build import make_engine
from simlora.engines.slora.fragmentation import pool_advice
from simlora.engines.slora.memory import slora_ledger, slora_shortages
from simlora.engines.slora.profile import slora_profile
from simlora.engines.spec import EngineSpec, Limits, Option, Shares
from simlora.memory.inputs import MemoryInputs
from simlora.scenario.engines.slora import SloraConfig
from simlora.scenario.lora_modules import ATTENTION
from simlora.scenario.root import Scenario


def _options(scenario: Scenario, share: Shares) -> Iterator[Option]:
    """One pool: what its adapters and its requests lack is the same memory, unless they have a pool each."""
    engine = scenario.engine
    assert isinstance(engine, SloraConfig)
    loading = engine.adapter_loading
    yield share["queue_seqs"], {"engine.running_max_req_size": 2 * engine.running_max_req_size}
    if engine.max_total_token_num is None:
        yield from more_memory(scenario, share)
    else:
        yield share["queue_kv"], {"engine.max_total_token_num": None}
    if not served_adapters(scenario):
        return
    stalls = share["queue_slots"] + share["load"]
    if not engine.unified_memory:
        yield stalls + share["queue_kv"], {"engine.unified_memory": True, "engine.pool_size_lora": 0}
        yield 0.9 * stalls, {"engine.pool_size_lora": 2 * engine.pool_size_lora}
    if not loading.overlap and not engine.artifact:
        yield stalls, {"engine.adapter_loading.overlap": True, "engine.adapter_loading.prefetch": True}


def _adapter_memory(scenario: Scenario) -> str:
    engine = scenario.engine
    assert isinstance(engine, SloraConfig)
    pool = "share one pool with the KV cache" if engine.unified_memory else "have a pool of their own"
    return f"{pool}, each at its own rank (q, k, v and o projections only)"


SPEC = EngineSpec(
    kind="slora",
    build=make_engine,
    ledger=lambda scenario: slora_ledger(MemoryInputs.of(scenario)),
    shortages=slora_shortages,
    profile=slora_profile,
    options=_options,
    adapter_memory=_adapter_memory,
    slot_rank=lambda scenario: 0,
    limits=Limits(seqs="running_max_req_size", tokens="batch_max_tokens", decodes_count=False),
    memory_advice=pool_advice,
    modules=ATTENTION,
    preloads=True,
    why_aborted="early abort, since they could not get their first token in time",
)
