"""Invariants of a vLLM replica, recounted from its requests.

INV-3: free + used KV blocks = total. INV-4: the adapters of a step fit the slots, and each of them is resident.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simlora.engines.request import Request
    from simlora.engines.vllm.engine import VllmEngine


def violations(engine: VllmEngine) -> Iterator[tuple[str, str]]:
    """(invariant, what is wrong)."""
    yield from _blocks(engine)
    yield from _adapters(engine)


def _blocks(engine: VllmEngine) -> Iterator[tuple[str, str]]:
    leaving = {id(r) for r in engine.leaving}
    own = sum(_held(engine, request, id(request) in leaving) for request in engine.running.values())
    yield from pool_violations(engine, own)


def pool_violations(engine: VllmEngine, own: int) -> Iterator[tuple[str, str]]:
    """own: blocks that the running requests hold, shared ones left out."""
    cache, free, total = engine.kv.cache, engine.kv.free, engine.limits.kv_blocks
    shared = 0 if cache is None else cache.used_blocks()
    if cache is not None and cache.idle_blocks > free:
        yield "INV-3", "idle cached blocks exceed the free ones"
    if free < 0:
        yield "INV-3", f"{free} free KV blocks"
    if free + own + shared != total:
        yield "INV-3", f"free {free} + used {own} + cached {shared} != {total} KV blocks"
    if len(engine.running) > engine.limits.max_num_seqs:
        yield "INV-3", "more running requests than seats"


def _held(engine: VllmEngine, request: Request, leaving: bool) -> int:
    """KV blocks of a request, shared ones left out."""
    if request is engine.partial:
        blocks = -(-request.computed // engine.limits.block_size)
    elif leaving:
        blocks = engine.decodes.blocks(request, request.last_step)
    else:
        blocks = engine.decodes.blocks(request, max(engine.step, request.start_step))
    return blocks - request.shared_blocks


def _adapters(engine: VllmEngine) -> Iterator[tuple[str, str]]:
    leaving = {id(r) for r in engine.leaving}
    active, tiers, slots = engine.slots.active, engine.slots.tiers, engine.limits.max_loras
    counted = Counter(r.adapter for r in engine.running.values() if r.adapter and id(r) not in leaving)
    if counted != Counter(active):
        yield "INV-4", f"active adapters {active} but the batch holds {dict(counted)}"
    if len(active) > slots:
        yield "INV-4", f"{len(active)} adapters in a step"
    if tiers is None:
        return
    for adapter in active:
        if adapter not in tiers.slots:
            yield "INV-4", f"adapter {adapter} is in the step but in no slot"
    if len(tiers.slots) > slots:
        yield "INV-4", "more resident adapters than slots"
