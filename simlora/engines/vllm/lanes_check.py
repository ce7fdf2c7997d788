"""Invariants of a vLLM replica with pipeline stages, recounted from its requests. See check.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from simlora.engines.vllm.check import pool_violations, shared_blocks
from simlora.engines.vllm.lane_slots import Lane

Engine = Any
"""A PipelineScheduler: this module is below it."""


def violations(engine: Engine) -> Iterator[tuple[str, str]]:
    """(invariant, what is wrong)."""
    yield from pool_violations(engine, sum(_held(engine, request) for request in engine.running))
    yield from _adapters(engine)
    if len({id(lane) for lane in engine.flights}) != sum(lane.flying for lane in engine.lanes):
        yield "INV-4", "a lane is in flight twice"


def _step(engine: Engine, lane: Lane) -> int:
    return int(engine.step) if lane is engine.lane else lane.step


def _held(engine: Engine, request: int) -> int:
    """KV blocks of a request, shared ones left out."""
    lane = engine.home_of(request)
    if lane is None:
        blocks = -(-engine.requests.computed[request] // engine.limits.block_size)
    else:
        step = min(max(_step(engine, lane), lane.decodes.first_step(request)), lane.decodes.last_step(request))
        blocks = lane.decodes.blocks(request, step)
    return int(blocks - shared_blocks(engine, request))


def _adapters(engine: Engine) -> Iterator[tuple[str, str]]:
    slots, tiers, adapter_of = engine.lane_slots, engine.lane_slots.tiers, engine.requests.adapter
    for lane in engine.lanes:
        counted = Counter(adapter_of[request] for _, request in lane.decodes.heap if adapter_of[request])
        if engine.partial >= 0 and adapter_of[engine.partial] and engine.partial_lane is lane:
            counted[adapter_of[engine.partial]] += 1
        if counted != Counter(lane.active):
            yield "INV-4", f"active adapters {lane.active} but the lane holds {dict(counted)}"
        if len(lane.active) > engine.limits.max_loras:
            yield "INV-4", f"{len(lane.active)} adapters in a batch"
    if tiers is None:
        return
    holders = Counter(adapter for lane in engine.lanes for adapter in lane.active)
    for adapter, lanes in holders.items():
        out = adapter in slots.out
        if out and adapter in engine.lane.active and engine.lane.flying:
            yield "INV-4", f"adapter {adapter} is in the batch, but not in a slot"
        if not out and tiers.slots.uses(adapter) != lanes:
            yield "INV-4", f"{lanes} lanes need adapter {adapter}, {tiers.slots.uses(adapter)} hold it"
    if not slots.out <= set(holders):
        yield "INV-4", "an adapter that nobody needs counts as out"
