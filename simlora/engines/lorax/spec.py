"""LoRAX as the rest of simlora sees it."""

from __future__ import annotations

from collections.abc import Iterator

from simlora.engines.lorax.build import make_engine
from simlora.engines.lorax.memory import lorax_ledger, lorax_shortages
from simlora.engines.lorax.profile import lorax_profile
from simlora.engines.options import served_adapters
from simlora.engines.spec import EngineSpec, Limits, Option, Shares
from simlora.memory.inputs import MemoryInputs
from simlora.scenario.engines.lorax import LoraxConfig
from simlora.scenario.root import Scenario


def _options(scenario: Scenario, share: Shares) -> Iterator[Option]:
    """Adapter memory, turns, and how eager prefills are."""
    engine, adapters = scenario.engine, served_adapters(scenario)
    assert isinstance(engine, LoraxConfig)
    yield share["queue_seqs"], {"engine.max_concurrent_requests": 2 * engine.max_concurrent_requests}
    yield share["queue_tokens"], {"engine.max_waiting_tokens": max(1, engine.max_waiting_tokens // 2)}
    if engine.max_batch_total_tokens is not None:
        yield share["queue_kv"], {"engine.max_batch_total_tokens": None}
    if not adapters:
        return
    stalls = share["queue_slots"] + share["load"]
    fraction = engine.adapter_memory_fraction
    if not engine.preloaded_adapter_ids:
        yield stalls, {"engine.adapter_memory_fraction": min(2 * fraction, 0.5)}
        yield share["queue_kv"], {"engine.adapter_memory_fraction": fraction / 2}
    if not engine.host_cache:
        yield 0.95 * share["load"], {"engine.host_cache": True}
    yield 0.9 * share["queue_slots"], {"engine.adapter_cycle_time_s": engine.adapter_cycle_time_s / 2}
    if adapters > engine.max_active_adapters:
        yield 0.98 * stalls, {"engine.max_active_adapters": min(2 * engine.max_active_adapters, adapters)}


def _adapter_memory(scenario: Scenario) -> str:
    engine = scenario.engine
    assert isinstance(engine, LoraxConfig)
    return f"{engine.adapter_memory_fraction:.0%} of GPU memory, in turns of {engine.adapter_cycle_time_s:g} s"


SPEC = EngineSpec(
    kind="lorax",
    build=make_engine,
    ledger=lambda scenario: lorax_ledger(MemoryInputs.of(scenario)),
    shortages=lorax_shortages,
    profile=lorax_profile,
    options=_options,
    adapter_memory=_adapter_memory,
    slot_rank=lambda scenario: 0,
    limits=Limits("max_concurrent_requests", True, "max_batch_prefill_tokens", decodes_count=False),
    loads_first=True,
    why_aborted="adapters lost their turn before they served (a load takes longer than adapter_cycle_time_s)",
)
