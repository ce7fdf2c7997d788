"""Invariants of a vLLM replica with pipeline stages, recounted from its requests. See vllm_check.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from simlora.engines.vllm.check import pool_violations

if TYPE_CHECKING:
    from simlora.engines.request import Request
    from simlora.engines.vllm.lane_slots import Lane
    from simlora.engines.vllm.lanes import VllmLanes


def violations(engine: VllmLanes) -> Iterator[tuple[str, str]]:
    """(invariant, what is wrong)."""
    yield from pool_violations(engine, sum(_held(engine, request) for request in engine.running.values()))
    yield from _adapters(engine)
    if len({id(lane) for lane in engine.flights}) != sum(lane.flying for lane in engine.lanes):
        yield "INV-4", "a lane is in flight twice"


def _step(engine: VllmLanes, lane: Lane) -> int:
    return engine.step if lane is engine.lane else lane.step


def _held(engine: VllmLanes, request: Request) -> int:
    """KV blocks of a request, shared ones left out."""
    lane = engine.home_of(request)
    if lane is None:
        return -(-request.computed // engine.limits.block_size) - request.shared_blocks
    step = min(max(_step(engine, lane), request.start_step), request.last_step)
    return lane.decodes.blocks(request, step) - request.shared_blocks


def _adapters(engine: VllmLanes) -> Iterator[tuple[str, str]]:
    slots, tiers = engine.lane_slots, engine.lane_slots.tiers
    for lane in engine.lanes:
        counted = Counter(request.adapter for _, _, request in lane.decodes.heap if request.adapter)
        if engine.partial is not None and engine.partial.adapter and engine.partial_lane is lane:
            counted[engine.partial.adapter] += 1
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
