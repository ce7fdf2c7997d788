"""SGLang as the rest of simlora sees it."""

from __future__ import annotations

from collections.abc import Iterator

from simlora.engines.options import FULL_GPU, served_adapters
from simlora.engines.sglang.build import make_engine
from simlora.engines.sglang.memory import sglang_ledger, sglang_shortages
from simlora.engines.sglang.profile import sglang_profile
from simlora.engines.spec import Changes, EngineSpec, Limits, Option, Shares
from simlora.memory.inputs import MemoryInputs
from simlora.scenario.engines.sglang import SglangConfig
from simlora.scenario.root import Scenario


def _options(scenario: Scenario, share: Shares) -> Iterator[Option]:
    """Slots, max_running_requests and the static share of memory."""
    engine, adapters = scenario.engine, served_adapters(scenario)
    assert isinstance(engine, SglangConfig)
    yield share["queue_seqs"], {"engine.max_running_requests": 2 * engine.max_running_requests}
    if engine.mem_fraction_static < FULL_GPU:
        yield share["queue_kv"], {"engine.mem_fraction_static": min(engine.mem_fraction_static + 0.05, FULL_GPU)}
    if not adapters:
        return
    stalls, slots, loaded = share["queue_slots"] + share["load"], engine.max_loras_per_batch, engine.max_loaded_loras
    for factor, weight in ((2, stalls), (4, 0.9 * share["queue_slots"])):
        more = min(factor * slots, adapters + 1)  # the base model takes one
        if more > slots:
            yield weight, _slots(more, loaded)
    if slots // 2 > max(1, len(scenario.adapters.pinned)):  # one for the base model
        yield share["queue_kv"] + share["decode_lora"], {"engine.max_loras_per_batch": slots // 2}
    if loaded is not None and loaded < adapters:
        yield 0.95 * stalls, {"engine.max_loaded_loras": min(2 * loaded, adapters)}
    if not engine.adapter_loading.overlap and (loaded or adapters) <= 2 * slots:
        yield 0.9 * stalls, {"engine.adapter_loading.overlap": True}


def _slots(slots: int, loaded: int | None) -> Changes:
    """max_loaded_loras may not be below the slots."""
    changes: Changes = {"engine.max_loras_per_batch": slots}
    return changes if loaded is None else changes | {"engine.max_loaded_loras": max(slots, loaded)}


def _places(scenario: Scenario) -> int:
    """Slots without the base model's."""
    return max(scenario.engine.max_loras - 1, 1)


SPEC = EngineSpec(
    kind="sglang",
    build=make_engine,
    ledger=lambda scenario: sglang_ledger(MemoryInputs.of(scenario)),
    shortages=sglang_shortages,
    profile=sglang_profile,
    options=_options,
    adapter_memory=lambda scenario: (
        f"{scenario.engine.max_loras} slots of rank {scenario.engine.max_lora_rank}, the base model's included"
    ),
    slot_rank=lambda scenario: int(scenario.engine.max_lora_rank),
    limits=Limits(seqs="max_running_requests", tokens="chunked_prefill_size", decodes_count=False),
    why_aborted="a single one did not fit the KV cache any more",
    places=_places,
    with_places=lambda scenario, places: {} if places is None else {"max_loras_per_batch": places + 1},
)
