"""What the wiring of the baselines has in common."""

from __future__ import annotations

from simlora.engines.baselines.base import BaselineLimits
from simlora.memory.eviction import make_policy
from simlora.memory.resident import ResidentSet
from simlora.sim.inputs import Inputs


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
