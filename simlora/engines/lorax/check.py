"""The invariants of a LoRAX engine, recounted from its requests and queues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from simlora.engines.lorax.queues import BUDGET, AdapterQueue

if TYPE_CHECKING:
    from simlora.engines.lorax.engine import LoraxEngine


def violations(engine: LoraxEngine) -> Iterator[tuple[str, str]]:
    """INV-3: blocks and the memory budget. INV-4: adapters, queues and the batch agree."""
    limits, queues = engine.limits, engine.queues
    reserved = sum(map(limits.blocks, engine.running.values()))
    if reserved != engine.used_blocks() or engine.batching.free < 0:
        yield "INV-3", f"{engine.used_blocks()} blocks in use, {reserved} reserved by requests"
    taken = sum(queue.units or 0 for queue in queues.active.values())
    if taken + queues.budget != BUDGET or queues.budget < 0:
        yield "INV-3", f"active adapters cost {taken}, {queues.budget} left of {BUDGET}"
    if len(queues.active) > limits.max_active_adapters:
        yield "INV-3", f"{len(queues.active)} adapters active"
    if len(engine.running) + queues.waiting > limits.max_concurrent_requests:
        yield "INV-3", f"{len(engine.running)} requests run and {queues.waiting} wait"
    for adapter in {request.adapter for request in engine.running.values()}:
        if not queues.known[adapter].active or not queues.known[adapter].ready:
            yield "INV-4", f"adapter {adapter} in the batch, but not on the GPU"
    known = list(queues.known.values())
    yield from _queues(engine, known)
    yield from _batch(engine)


def _queues(engine: LoraxEngine, known: list[AdapterQueue]) -> Iterator[tuple[str, str]]:
    queues = engine.queues
    for queue in known:
        pending = sum(other is queue for other in queues.pending)
        if pending + (queue.adapter in queues.active) != queue.tracked or (queue.requests and not queue.tracked):
            yield "INV-4", f"adapter {queue.adapter}: tracked {queue.tracked}, pending {pending}"
        if queue.active != (queue.adapter in queues.active) or (queue.ready and not queue.active):
            yield "INV-4", f"adapter {queue.adapter}: active {queue.active}, ready {queue.ready}"
    servable = {q.adapter: len(q.requests) for q in known if q.ready and q.requests}
    if servable.keys() != queues.servable.keys() or sum(servable.values()) != queues.servable_waiting:
        yield "INV-4", f"servable {list(queues.servable)}, by their queues {list(servable)}"
    if sum(len(queue.requests) for queue in known) != queues.waiting:
        yield "INV-4", f"{queues.waiting} requests wait, by their queues {servable}"
    if queues.waiting and not engine.running and engine.loader.idle:
        yield "INV-4", "requests wait, and nothing will change that"


def _batch(engine: LoraxEngine) -> Iterator[tuple[str, str]]:
    running = engine.running.values()
    requests: dict[int, int] = {}
    for request in running:
        requests[request.adapter] = requests.get(request.adapter, 0) + 1
    if requests != engine.ranks.requests:
        yield "INV-4", f"adapters in use {engine.ranks.requests}, by the requests {requests}"
    if engine.decodes.count + len(engine.prefilling) != len(running):
        yield "INV-4", f"{engine.decodes.count} decode, {len(engine.prefilling)} prefill, of {len(running)}"
