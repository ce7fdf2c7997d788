"""Recounts what a SloraEngine keeps from its requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simlora.engines.slora.engine import SloraEngine


def find_violations(engine: SloraEngine) -> Iterator[tuple[str, str]]:
    """(invariant, what is wrong). INV-3: free + KV + adapter units = total, KV as the requests hold it, and enough for
    all of them to run to their end. INV-4: who runs has its adapter in the pool; who was accepted has it there, or on
    its way."""
    limits, pool, step = engine.limits, engine.pool, engine.step
    wrong = pool.check()
    if wrong is not None:
        yield "INV-3", wrong
    held = sum(engine.decodes.blocks(request, max(step, request.start_step)) for request in engine.running.values())
    if held != pool.used_kv:
        yield "INV-3", f"requests hold {held} units, the pool counts {pool.used_kv}"
    for request in engine.running.values():
        if not pool.ready(request.adapter):
            yield "INV-4", f"request {request.index} runs without adapter {request.adapter}"
    users = Counter(r.adapter for r in (*engine.running.values(), *engine.accepted) if r.adapter)
    if pool.uses() != dict(users):
        yield "INV-4", f"adapters in use {dict(users)}, the pool counts {pool.uses()}"
    limit = limits.kv_limit(sum(pool.units_of(adapter) for adapter in users))
    if engine.running and engine.worst.need() >= limit:
        yield "INV-3", f"the running requests will need {engine.worst.need()} of {limit} units"
    if len(engine.running) + len(engine.accepted) > limits.running_max_req_size:
        yield "INV-4", f"{len(engine.running)} requests run"
