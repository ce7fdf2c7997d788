"""Laws that every engine keeps, whatever its policy: for tests under hypothesis with round or rounded step times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from support.compare import life, row_sums, same_sums
from support.fakes import make_requests, make_router

from simlora.engines.request import Request, Requests
from simlora.engines.request_columns import RequestColumns
from simlora.engines.vllm.replica import VllmReplica
from simlora.sim.clock import Clock
from simlora.sim.invariants import InvariantChecker
from simlora.sim.replica import EngineReplica
from simlora.sim.simulation import Simulation

MakeEngine = Callable[..., Any]
"""() -> Engine, or RequestColumns -> VllmScheduler where the requests are columns."""


def play(
    make_engine: MakeEngine,
    requests: Sequence[Request] | RequestColumns,
    latency: Any,
    coalesce: bool = True,
    replicas: int = 1,
    router: str = "round-robin",
    cut_s: float | None = None,
    check: bool = True,
) -> Simulation:
    """One simulation of its own requests (they are changed by it), invariants checked at every plan."""
    clock, checker = Clock(), InvariantChecker()
    made: list[Any]
    if isinstance(requests, RequestColumns):
        made = [VllmReplica(i, make_engine(requests), latency, coalesce) for i in range(replicas)]
    else:
        requests = Requests(requests)
        made = [EngineReplica(i, make_engine(), latency, requests, coalesce) for i in range(replicas)]
    if check:
        for replica in made:
            replica.on_boundary = checker.check
    simulation = Simulation(clock, made, make_router(router, replicas), requests, latency.frontend_in_s, cut_s=cut_s)
    simulation.run()
    if check:
        checker.check_end(requests, drained=cut_s is None)
    return simulation


def assert_modes_agree(make_engine: MakeEngine, make: Callable[[], Any], latency: Any, **kw: Any) -> None:
    """Coalesced == step by step, bit by bit in every request's times, and in what a replica's rows add up to."""
    fast, slow = (play(make_engine, make(), latency, coalesce, **kw) for coalesce in (True, False))
    assert [life(r) for r in fast.requests] == [life(r) for r in slow.requests]
    for one, other in zip(fast.replicas, slow.replicas, strict=True):
        assert one.engine.counters() == other.engine.counters()
        assert (one.finished, one.rejected, one.outstanding) == (other.finished, other.rejected, other.outstanding)
        assert one.engine.state(0) == other.engine.state(0)
        assert same_sums(row_sums(one), row_sums(other)) == []


def assert_conserves(simulation: Simulation) -> None:
    """Everyone finished or was rejected, everything is given back, and each token came out once."""
    for request in simulation.requests:
        assert request.rejected or request.last_token_s >= request.first_token_s >= request.admitted_s
    for replica in simulation.replicas:
        engine = replica.engine
        assert replica.outstanding == 0 and engine.num_running() == 0 and sum(engine.waiting_by_reason()) == 0
        rejected = sum(r.rejected and r.replica == replica.index for r in simulation.requests)
        assert replica.finished + rejected == sum(r.replica == replica.index for r in simulation.requests)


__all__ = ["assert_conserves", "assert_modes_agree", "make_requests", "play"]
