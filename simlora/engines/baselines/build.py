"""The parts of the baselines' replicas."""

from __future__ import annotations

from simlora.engines.baselines.base import BaselineLimits
from simlora.engines.baselines.grouped import GroupedEngine
from simlora.engines.baselines.merged_swap import MergedSwapEngine
from simlora.engines.baselines.sequential import SequentialEngine
from simlora.engines.inputs import Inputs
from simlora.memory.residents import ResidentSet, make_policy
from simlora.scenario.engines.baselines import GroupedConfig, MergedSwapConfig


def baseline_limits(inputs: Inputs, switch_after: int = 1) -> BaselineLimits:
    """Settings of a baseline's scheduler."""
    engine, ledger = inputs.scenario.engine, inputs.ledger
    return BaselineLimits(
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        kv_blocks=ledger.kv_units,
        block_size=ledger.kv_unit_tokens,
        switch_after=switch_after,
    )


def adapter_slots(inputs: Inputs) -> ResidentSet | None:
    """Places for adapters on the GPU, with those that are there at the start; None without adapters."""
    scenario, room = inputs.scenario, inputs.ledger.adapter_room
    if not scenario.engine.enable_lora or not room.slots:
        return None
    pinned = scenario.adapters.pinned
    slots = ResidentSet(room.slots, make_policy(scenario.engine.eviction), pinned)
    for adapter in (*inputs.initial.gpu, *pinned):
        slots.add(adapter, 0.0)
    return slots


def make_grouped(inputs: Inputs) -> GroupedEngine:
    """One replica."""
    engine = inputs.scenario.engine
    assert isinstance(engine, GroupedConfig)
    return GroupedEngine(baseline_limits(inputs, engine.switch_after), adapter_slots(inputs))


def make_merged_swap(inputs: Inputs) -> MergedSwapEngine:
    """One replica. It starts with plain weights."""
    engine = inputs.scenario.engine
    assert isinstance(engine, MergedSwapConfig)
    return MergedSwapEngine(baseline_limits(inputs, engine.switch_after), adapter_slots(inputs), inputs.latency.merge_s)


def make_sequential(inputs: Inputs) -> SequentialEngine:
    """One replica."""
    return SequentialEngine(baseline_limits(inputs), adapter_slots(inputs))
