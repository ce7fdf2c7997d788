"""Invariants of an SGLang replica, recounted from its requests.

INV-3: free + used KV tokens = total. INV-4: the running adapters fit the slots; those of the last step are resident.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simlora.engines.sglang.engine import SglangEngine


def violations(engine: SglangEngine) -> Iterator[tuple[str, str]]:
    """(invariant, what is wrong)."""
    yield from _tokens(engine)
    yield from _adapters(engine)


def _tokens(engine: SglangEngine) -> Iterator[tuple[str, str]]:
    held = 0
    for request in engine.running.values():
        if request.computed < request.prefill_tokens:
            held += request.computed
        else:
            held += engine.decodes.blocks(request, max(engine.step, request.start_step))
    total = engine.limits.kv_tokens
    if engine.free < 0:
        yield "INV-3", f"{engine.free} free KV tokens"
    if engine.free + held != total:
        yield "INV-3", f"free {engine.free} + used {held} != {total} KV tokens"
    if len(engine.running) > engine.limits.max_running_requests:
        yield "INV-3", "more running requests than seats"
    half = [r.index for r in engine.running.values() if r.computed < r.prefill_tokens]
    if half != ([] if engine.partial is None else [engine.partial.index]):
        yield "INV-3", f"half computed prompts {half}"


def _adapters(engine: SglangEngine) -> Iterator[tuple[str, str]]:
    counted = Counter(request.adapter for request in engine.running.values())
    if counted != Counter(engine.places.running):
        yield "INV-4", f"running adapters {engine.places.running}, but the batch holds {dict(counted)}"
    if engine.pool is None:
        return
    if len(counted) > engine.pool.slots:
        yield "INV-4", f"{len(counted)} adapters run"
    for message in engine.pool.check():
        yield "INV-4", message
    loading = engine.adapters.loader.in_flight if engine.adapters.loader is not None else frozenset()
    needed = counted.keys() if engine.adapters.loader is not None else engine.adapters.step
    for adapter in needed:
        if adapter not in engine.pool or adapter in loading:
            yield "INV-4", f"adapter {adapter} is in the step but in no slot"
