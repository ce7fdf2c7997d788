"""Invariants of a vLLM replica, recounted from its requests.

INV-3: free + used KV blocks = total. INV-4: the adapters of a step fit the slots, and each of them is resident.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

Batch = Any
"""A VllmBatch: this module is below it."""


def violations(batch: Batch) -> Iterator[tuple[str, str]]:
    """(invariant, what is wrong)."""
    finishing = dict(batch.finishing)
    own = sum(_held(batch, request, finishing) for request in batch.running)
    yield from pool_violations(batch, own)
    yield from _adapters(batch, finishing)


def pool_violations(batch: Batch, own: int) -> Iterator[tuple[str, str]]:
    """own: blocks that the running requests hold, shared ones left out."""
    cache, free, total = batch.kv.cache, batch.kv.free, batch.limits.kv_blocks
    shared = 0 if cache is None else cache.used_blocks()
    if cache is not None and cache.idle_blocks > free:
        yield "INV-3", "idle cached blocks exceed the free ones"
    if free < 0:
        yield "INV-3", f"{free} free KV blocks"
    if free + own + shared != total:
        yield "INV-3", f"free {free} + used {own} + cached {shared} != {total} KV blocks"
    if len(batch.running) > batch.limits.max_num_seqs:
        yield "INV-3", "more running requests than max_num_seqs"


def shared_blocks(batch: Batch, request: int) -> int:
    """Blocks of a request that count as the cache's."""
    cache = batch.kv.cache
    return 0 if cache is None else int(cache.shared_blocks(request))


def _held(batch: Batch, request: int, finishing: dict[int, int]) -> int:
    """KV blocks of a request, shared ones left out."""
    if request == batch.partial:
        blocks = -(-batch.requests.computed[request] // batch.limits.block_size)
    elif request in finishing:
        blocks = finishing[request]
    else:
        blocks = batch.decodes.blocks(request, max(batch.step, batch.decodes.first_step(request)))
    return int(blocks - shared_blocks(batch, request))


def _adapters(batch: Batch, finishing: dict[int, int]) -> Iterator[tuple[str, str]]:
    active, tiers, slots = batch.slots.active, batch.slots.tiers, batch.limits.max_loras
    adapters = (batch.requests.adapter[request] for request in batch.running if request not in finishing)
    counted = Counter(adapter for adapter in adapters if adapter)
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
