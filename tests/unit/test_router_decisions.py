"""What the simulation does with a router's decisions."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from support.cases import Case
from support.fakes import TICK_S, RoundLatency, columns_of

from simlora.cluster.router import Decision, Hold, Reject, Send
from simlora.engines.request_columns import RequestRow
from simlora.engines.view import View
from simlora.engines.vllm.batch import VllmLimits

CASE = Case(VllmLimits(4, 64, 100, 16, 0, 16, True), ((1000, 0, 8, 4),) * 4, RoundLatency(front_in=0), 0)


class Scripted:
    """Answers by request number; a list is used up from the front."""

    needs_views = False
    oblivious = False

    def __init__(self, script: dict[int, list[Decision]]) -> None:
        self.script, self.asked = script, []

    def choose(self, request: RequestRow, views: Sequence[View], now_s: float) -> Decision:
        self.asked.append((request.index, now_s))
        return self.script[request.index].pop(0)


def test_a_rejected_request_never_reaches_a_replica() -> None:
    router = Scripted({0: [Send(0)], 1: [Reject("full")], 2: [Send(1)], 3: [Reject("full")]})
    requests = CASE.requests()
    simulation = CASE.simulation(requests, router=router, replicas=2)
    simulation.run()
    assert [r.rejected for r in requests] == [False, True, False, True]
    assert [r.replica for r in requests] == [0, -1, 1, -1]
    assert simulation.rejected == 2
    assert math.isnan(requests[1].routed_s) and math.isnan(requests[1].first_token_s)
    assert [r.finished for r in simulation.replicas] == [1, 1]


def test_a_held_request_is_asked_for_again() -> None:
    """As often as the router holds it; it reaches the replica when it is sent."""
    later = [0.01, 0.02]
    router = Scripted({0: [Send(0)], 1: [Hold(later[0]), Hold(later[1]), Send(0)], 2: [Send(0)], 3: [Send(0)]})
    requests = CASE.requests()
    simulation = CASE.simulation(requests, router=router)
    simulation.run()
    arrivals = [r.arrival_s for r in requests]
    assert router.asked == [
        (0, arrivals[0]), (1, arrivals[1]), (2, arrivals[2]), (3, arrivals[3]), (1, later[0]), (1, later[1]),
    ]  # fmt: skip
    assert requests[1].routed_s == 0.02
    assert requests[1].arrival_s == 2000 * TICK_S
    assert requests[1].admitted_s >= 0.02
    assert simulation.end_s >= requests[1].last_token_s - 2000 * TICK_S
    assert not any(math.isnan(r.last_token_s) for r in requests)


def test_a_request_held_beyond_the_cut_is_unfinished() -> None:
    router = Scripted({0: [Send(0)], 1: [Hold(1.0), Send(0)], 2: [Send(0)], 3: [Send(0)]})
    requests = CASE.requests()
    CASE.simulation(requests, router=router, cut_s=0.5).run()
    assert math.isnan(requests[1].routed_s) and not requests[1].rejected
    assert not math.isnan(requests[3].last_token_s)


def test_an_empty_stream_ends_at_once() -> None:
    simulation = CASE.simulation(columns_of([]))
    simulation.run()
    assert simulation.end_s == 0.0


def test_requests_reach_the_scheduler_after_the_front_end() -> None:
    case = Case(CASE.limits, CASE.rows, RoundLatency(front_in=512), 0)
    requests = case.requests()
    case.simulation(requests).run()
    assert [r.routed_s - r.arrival_s for r in requests] == [512 * TICK_S] * 4
