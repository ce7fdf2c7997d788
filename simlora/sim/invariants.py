"""Invariants that hold at every plan and at the end of every run.

INV-1 conservation: offered = completed + rejected + unfinished. INV-2 the clock never goes back. INV-3 per pool: free +
used = total. INV-4 adapters of a step fit the slots, and each of them is resident. INV-5 causality: arrival <= admitted
<= first token <= last token. INV-8 a completed request got each token once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from simlora.engines.request import Request
from simlora.engines.vllm import VllmEngine
from simlora.sim.replica import Replica


class InvariantError(AssertionError):
    """An invariant does not hold: a defect of simlora."""


class InvariantChecker:
    """Recounts a replica's state from its requests and compares it with what the engine keeps."""

    def __init__(self) -> None:
        self._last_s: dict[int, float] = {}

    def check(self, replica: Replica, now_s: float) -> None:
        """Called after every plan."""
        _hold(now_s >= self._last_s.get(replica.index, 0.0), "INV-2", f"clock went back to {now_s}")
        self._last_s[replica.index] = now_s
        _check_blocks(replica.engine)
        _check_adapters(replica.engine)

    def check_end(self, requests: Sequence[Request], drained: bool) -> None:
        """Called once, with every request."""
        for request in requests:
            if request.rejected:
                continue
            if drained:
                _hold(request.last_token_s == request.last_token_s, "INV-1", f"request {request.index} never finished")
            _check_times(request)


def _hold(condition: bool, invariant: str, message: str) -> None:
    if not condition:
        raise InvariantError(f"{invariant}: {message}")


def _check_blocks(engine: VllmEngine) -> None:
    leaving = {id(r) for r in engine.leaving}
    own = shared = 0
    for request in engine.running.values():
        if request is engine.partial:
            blocks = -(-request.computed // engine.limits.block_size)
        elif id(request) in leaving:
            blocks = engine.decodes.blocks(request, request.last_step)
        else:
            blocks = engine.decodes.blocks(request, max(engine.step, request.start_step))
        own += blocks - request.shared_blocks
    if engine.kv.cache is not None:
        shared = engine.kv.cache.used_blocks()
        _hold(engine.kv.cache.idle_blocks <= engine.kv.free, "INV-3", "idle cached blocks exceed the free ones")
    total = engine.limits.kv_blocks
    _hold(engine.kv.free >= 0, "INV-3", f"{engine.kv.free} free KV blocks")
    _hold(
        engine.kv.free + own + shared == total,
        "INV-3",
        f"free {engine.kv.free} + used {own} + cached {shared} != {total} KV blocks",
    )
    _hold(len(engine.running) <= engine.limits.max_num_seqs, "INV-3", "more running requests than seats")


def _check_adapters(engine: VllmEngine) -> None:
    leaving = {id(r) for r in engine.leaving}
    active = engine.slots.active
    counted = Counter(r.adapter for r in engine.running.values() if r.adapter and id(r) not in leaving)
    _hold(counted == Counter(active), "INV-4", f"active adapters {active} but the batch holds {dict(counted)}")
    _hold(len(active) <= engine.limits.max_loras, "INV-4", f"{len(active)} adapters in a step")
    if engine.slots.tiers is not None:
        for adapter in engine.slots.active:
            _hold(adapter in engine.slots.tiers.slots, "INV-4", f"adapter {adapter} is in the step but in no slot")
        _hold(len(engine.slots.tiers.slots) <= engine.limits.max_loras, "INV-4", "more resident adapters than slots")


def _check_times(request: Request) -> None:
    times = [request.arrival_s, request.routed_s, request.admitted_s, request.first_token_s, request.last_token_s]
    known = [t for t in times if t == t]
    _hold(known == sorted(known), "INV-5", f"request {request.index}: times out of order {times}")
    if request.last_token_s == request.last_token_s:
        _hold(request.admitted_s == request.admitted_s, "INV-5", f"request {request.index} finished unadmitted")
        _hold(request.last_step - request.start_step + 1 + request.emitted > 0, "INV-8", f"request {request.index}")
