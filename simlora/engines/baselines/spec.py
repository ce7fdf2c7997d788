"""The naive baselines as the rest of simlora sees them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simlora.engines.baselines.build import make_grouped, make_merged_swap, make_sequential
from simlora.engines.options import buffers, more_memory, served_adapters
from simlora.engines.shortages import common, lowered
from simlora.engines.spec import EngineSpec, Option, Shares
from simlora.engines.whole_adapters import buffer_words, largest_rank, projection_loads
from simlora.latency.profile import EngineProfile
from simlora.memory.buffers import buffer_ledger
from simlora.memory.inputs import MemoryInputs
from simlora.memory.ledger import EngineLedger
from simlora.memory.shortage import PREFILL, SLOTS, Shortage
from simlora.scenario.engines.baselines import GroupedConfig, MergedSwapConfig, NaiveConfig
from simlora.scenario.root import Scenario


def naive_profile(engine: NaiveConfig) -> EngineProfile:
    """A loop over adapters, no graphs, host and GPU alternating."""
    return EngineProfile(
        engine.kind, "alternating", "loop", "loop", projection_loads(engine), torch_launches=15
    ).with_kernels(engine.kernels)


def _merged_profile(engine: NaiveConfig) -> EngineProfile:
    return replace(naive_profile(engine), prefill_kernels=None, decode_kernels=None)


def _shortages(scenario: Scenario, ledger: EngineLedger) -> Iterator[Shortage | None]:
    yield lowered(scenario, ledger, SLOTS, "max_loras")
    yield from _merged_shortages(scenario, ledger)


def _merged_shortages(scenario: Scenario, ledger: EngineLedger) -> Iterator[Shortage | None]:
    yield lowered(scenario, ledger, PREFILL, "max_num_batched_tokens")
    yield from common(scenario, ledger)


def _sequential_options(scenario: Scenario, share: Shares) -> Iterator[Option]:
    yield from _any_options(scenario, share)
    yield from buffers(scenario, share)


def _any_options(scenario: Scenario, share: Shares) -> Iterator[Option]:
    yield share["queue_seqs"], {"engine.max_num_seqs": 2 * scenario.engine.max_num_seqs}
    yield from more_memory(scenario, share)


def _turns(scenario: Scenario, share: Shares) -> Iterator[Option]:
    """One adapter at a time: how long its turn is."""
    engine = scenario.engine
    assert isinstance(engine, GroupedConfig | MergedSwapConfig)
    yield from _any_options(scenario, share)
    if served_adapters(scenario) > 1:
        yield share["queue_slots"], {"engine.switch_after": 2 * engine.switch_after}
        yield 0.99 * share["queue_slots"], {"engine.switch_after": max(1, engine.switch_after // 2)}


def _grouped_options(scenario: Scenario, share: Shares) -> Iterator[Option]:
    yield from _turns(scenario, share)
    now = scenario.engine.max_loras
    more = min(2 * now, served_adapters(scenario))
    if more > now:
        yield share["load"], {"engine.max_loras": more}


SEQUENTIAL = EngineSpec(
    kind="sequential",
    build=make_sequential,
    ledger=lambda scenario: buffer_ledger(MemoryInputs.of(scenario)),
    shortages=_shortages,
    profile=naive_profile,
    options=_sequential_options,
    adapter_memory=buffer_words,
    slot_rank=largest_rank,
)
GROUPED = replace(SEQUENTIAL, kind="grouped", build=make_grouped, options=_grouped_options)
MERGED_SWAP = replace(
    SEQUENTIAL,
    kind="merged-swap",
    build=make_merged_swap,
    ledger=lambda scenario: buffer_ledger(MemoryInputs.of(scenario), "merged adapter"),
    shortages=_merged_shortages,
    profile=_merged_profile,
    options=_turns,
    adapter_memory=lambda scenario: "one at a time, merged into the weights",
    merges=True,
)
