"""Plays a stream of requests through a router and its replicas in simulated time.

Replicas play their steps by themselves, and only as far as somebody asks about them. What the clock sees are events
from outside: arrivals, the router's ticks, the end. Only where a replica's doings concern others (a request that is
kept at the router until one is done somewhere, requests that move between replicas) are its boundaries events, too.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from simlora.cluster.actions import Ticking
from simlora.cluster.router import Hold, Reject, Router, Send
from simlora.engines.request import Requests
from simlora.engines.request_columns import RequestColumns
from simlora.engines.run_log import RunLog
from simlora.engines.view import View
from simlora.sim.clock import ARRIVAL, ROUTER_TICK, SAMPLE, STEP_END, Clock
from simlora.sim.migration import Migrations
from simlora.sim.views import StaleViews

Progress = Callable[[int, float], None]
"""Called with (requests arrived, simulated time)."""
PROGRESS_EVERY = 1024
FOREVER_S = float("inf")
LAST_S = sys.float_info.max
"""After all that happens."""


class Replica(Protocol):
    """What a simulation asks of a replica. A request is its number in order of arrival."""

    index: int
    engine: Any
    log: RunLog
    finished: int
    rejected: int
    outstanding: int
    now_s: float
    next_s: float
    on_boundary: Any
    on_finished: Any

    def enqueue(self, request: int, now_s: float) -> None: ...
    def expect(self, request: int, at_s: float) -> None: ...
    def advance(self, until_s: float) -> None: ...
    def cut(self, now_s: float) -> None: ...
    def view_at(self, time_s: float) -> View: ...


class Simulation:
    """A run from the first arrival to the last token (or to cut_s).

    Requests reach their replica's scheduler frontend_in_s after the client sent them. Without an end, the run ends when
    every request has finished or was rejected.
    """

    def __init__(
        self,
        clock: Clock,
        replicas: Sequence[Any],
        router: Router,
        requests: RequestColumns | Requests,
        frontend_in_s: float = 0.0,
        scrape_s: float = 0.0,
        delay_s: float = 0.0,
        cut_s: float | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.clock, self.replicas, self.router, self.requests = clock, replicas, router, requests
        self._in_s, self._cut_s, self._progress = frontend_in_s, cut_s, progress
        self._views = StaleViews(replicas, scrape_s, delay_s) if router.needs_views else None
        self._next = 0
        self._held: deque[int] = deque()
        """Requests that the router keeps until one is done somewhere, in the order in which it was asked."""
        self._offering = False
        self._watching = False
        """The boundaries of replicas are events."""
        self._migrations = Migrations(clock, replicas, self._arrived_from_replica, self._schedule)
        self.rejected = 0
        self.end_s = 0.0

    def run(self) -> None:
        arrivals = self.requests.arrival_s
        if isinstance(self.router, Ticking) and arrivals:
            self._watching = True
            self.clock.at(self.router.tick_s, ROUTER_TICK, self._tick, 1)
        if self._cut_s is not None:
            end = self.clock.event()
            self.clock.at(self._cut_s, SAMPLE, self._stop, end)
        if arrivals and self.router.oblivious:
            self._route_ahead()
        elif arrivals:
            self.clock.at(arrivals[0] + self._in_s, ARRIVAL, self._arrive)
        self.clock.run(until=None if self._cut_s is None else end)
        for replica in self.replicas:
            replica.advance(LAST_S if self._cut_s is None else self._cut_s)
        if self._cut_s is not None:
            for replica in self.replicas:
                replica.cut(self._cut_s)
            self.end_s = self._cut_s
        else:
            last = max((s for s in self.requests.last_token_s if s == s), default=0.0)
            arrived = arrivals[-1] + self._in_s if arrivals else 0.0
            self.end_s = max([last, arrived, *(replica.now_s for replica in self.replicas)])

    def _route_ahead(self) -> None:
        """Nothing that happens can change where the requests go: tell the replicas what they have to expect."""
        end_s = FOREVER_S if self._cut_s is None else self._cut_s
        router: Any = self.router
        requests, replicas = self.requests, self.replicas
        for index, arrival_s in enumerate(requests.arrival_s):
            now_s = arrival_s + self._in_s
            if now_s > end_s:
                break
            replicas[router.replica_of(requests, index)].expect(index, now_s)
            if index % PROGRESS_EVERY == PROGRESS_EVERY - 1:
                for replica in replicas:
                    replica.advance(now_s)
                if self._progress is not None:
                    self._progress(index + 1, now_s)

    def _arrive(self, event: Any) -> None:
        """One arrival after the other, as long as nothing else comes first."""
        arrivals, in_s, peek = self.requests.arrival_s, self._in_s, self.clock.peek
        index, last = self._next, len(arrivals)
        now_s = arrivals[index] + in_s
        while True:
            self._next = index + 1
            if self._progress is not None and index % PROGRESS_EVERY == PROGRESS_EVERY - 1:
                self._progress(self._next, now_s)
            self._route(index, now_s)
            index += 1
            if index == last:
                return
            now_s = arrivals[index] + in_s
            if now_s >= peek():
                self.clock.at(now_s, ARRIVAL, self._arrive)
                return

    def _route(self, request: int, now_s: float) -> None:
        views: Sequence[View] = () if self._views is None else self._views.at(now_s)
        decision = self.router.choose(self.requests[request], views, now_s)
        if isinstance(decision, Send):
            self._send(request, decision.replica, now_s)
        elif isinstance(decision, Hold) and decision.until_s < FOREVER_S:
            self.clock.at(decision.until_s, ARRIVAL, self._route_held, request)
        elif isinstance(decision, Hold):
            self._held.append(request)
            self._watch(now_s)
        elif isinstance(decision, Reject):
            self.requests.reject(request)
            self.rejected += 1

    def _send(self, request: int, target: int, now_s: float) -> None:
        replica = self.replicas[target]
        if self._views is not None:
            self._views.keep(replica, now_s)
        replica.enqueue(request, now_s)
        if self._watching:
            self._schedule(replica)

    @staticmethod
    def _stop(event: Any) -> None:
        event.value.succeed()

    def _route_held(self, event: Any) -> None:
        self._route(event.value, self.clock.now)

    # --- boundaries as events -----------------------------------------------------------------------------------

    def _watch(self, now_s: float) -> None:
        """From now on, requests that the router keeps are offered when one is done somewhere."""
        for replica in self.replicas:
            if self._views is not None:
                self._views.keep(replica, now_s)
            replica.advance(now_s)
            replica.on_finished = self._offer_soon
            if not self._watching:
                self._schedule(replica)
        self._watching = True

    def _schedule(self, replica: Replica) -> None:
        """Its next boundary is an event. Where an earlier one comes in between, this one has no effect."""
        if replica.next_s < FOREVER_S:
            self.clock.at(replica.next_s, STEP_END, self._play, (replica, replica.next_s))

    def _play(self, event: Any) -> None:
        replica, due_s = event.value
        if replica.next_s == due_s:
            if self._views is not None:
                self._views.keep(replica, due_s)
            replica.advance(due_s)
            self._schedule(replica)

    # --- requests that the router keeps, and its ticks ----------------------------------------------------------

    def _offer_soon(self, now_s: float) -> None:
        """A replica may have room at now_s, a boundary of its that no event comes before."""
        if self._held and not self._offering:
            self._offering = True
            self.clock.at(now_s, ROUTER_TICK, self._offer)

    def _offer(self, event: Any) -> None:
        self._offering = False
        now_s = self.clock.now
        views: Sequence[View] = () if self._views is None else self._views.at(now_s)
        decision = self.router.choose(self.requests[self._held[0]], views, now_s)
        if not isinstance(decision, Send):
            return
        request = self._held.popleft()
        self._offer_soon(now_s)
        self._send(request, decision.replica, now_s)

    def _arrived_from_replica(self, request: int, target: int, now_s: float) -> None:
        self._offer_soon(now_s)
        self._send(request, target, now_s)

    def _tick(self, event: Any) -> None:
        assert isinstance(self.router, Ticking) and self._views is not None
        now_s = self.clock.now
        at_replicas = any(replica.outstanding for replica in self.replicas)
        if self._next == len(self.requests) and not (self._held or self._migrations.moving or at_replicas):
            return
        self.clock.at((event.value + 1) * self.router.tick_s, ROUTER_TICK, self._tick, event.value + 1)
        self._migrations.ask(self.router.tick(now_s, self._views.at(now_s)), now_s)
