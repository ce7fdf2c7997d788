"""Plays a stream of requests through a router and its replicas in simulated time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from simlora.cluster.actions import Ticking
from simlora.cluster.router import Decision, Hold, Reject, Router, Send
from simlora.cluster.view import View
from simlora.engines.request import Request
from simlora.sim.clock import ARRIVAL, ROUTER_TICK, SAMPLE, Clock
from simlora.sim.migration import Migrations
from simlora.sim.replica import Replica
from simlora.sim.views import StaleViews

Progress = Callable[[int, float], None]
"""Called with (requests arrived, simulated time)."""
PROGRESS_EVERY = 1024
FOREVER_S = float("inf")


class Simulation:
    """A run from the first arrival to the last token (or to cut_s).

    Requests reach their replica's scheduler frontend_in_s after the client sent them. Without an end, the run ends when
    every request has finished or was rejected.
    """

    def __init__(
        self,
        clock: Clock,
        replicas: list[Replica],
        router: Router,
        requests: Sequence[Request],
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
        self._held: deque[Request] = deque()
        """Requests that the router keeps until one is done somewhere, in the order in which it was asked."""
        self._offering = False
        self._migrations = Migrations(clock, replicas, self._offer_soon)
        self.rejected = 0
        self.end_s = 0.0

    def run(self) -> None:
        if isinstance(self.router, Ticking) and self.requests:
            self.clock.at(self.router.tick_s, ROUTER_TICK, self._tick, 1)
        if self._cut_s is not None:
            end = self.clock.event()
            self.clock.at(self._cut_s, SAMPLE, self._stop, end)
        if self.requests:
            self.clock.at(self.requests[0].arrival_s + self._in_s, ARRIVAL, self._arrive)
        self.clock.run(until=None if self._cut_s is None else end)
        if self._cut_s is not None:
            for replica in self.replicas:
                replica.advance_to(self._cut_s)
            self.end_s = self._cut_s
        else:
            last = [r.last_token_s for r in self.requests if r.last_token_s == r.last_token_s]
            arrived = [self.requests[-1].arrival_s + self._in_s] if self.requests else []
            self.end_s = max([0.0, *last, *arrived, *(replica.now_s for replica in self.replicas)])

    def _arrive(self, event: Any) -> None:
        request = self.requests[self._next]
        now_s = request.arrival_s + self._in_s
        self._next += 1
        if self._next < len(self.requests):
            self.clock.at(self.requests[self._next].arrival_s + self._in_s, ARRIVAL, self._arrive)
            if self._progress is not None and self._next % PROGRESS_EVERY == 0:
                self._progress(self._next, now_s)
        self._route(request, now_s)

    def _decide(self, request: Request, now_s: float) -> Decision:
        views: Sequence[View] = () if self._views is None else self._views.at(now_s)
        return self.router.choose(request, views, now_s)

    def _route(self, request: Request, now_s: float) -> None:
        decision = self._decide(request, now_s)
        if isinstance(decision, Send):
            self.replicas[decision.replica].enqueue(request, now_s)
        elif isinstance(decision, Hold) and decision.until_s < FOREVER_S:
            self.clock.at(decision.until_s, ARRIVAL, self._route_held, request)
        elif isinstance(decision, Hold):
            self._held.append(request)
            for replica in self.replicas:
                replica.on_finished = self._offer_soon
        elif isinstance(decision, Reject):
            request.rejected = True
            self.rejected += 1

    @staticmethod
    def _stop(event: Any) -> None:
        event.value.succeed()

    def _route_held(self, event: Any) -> None:
        self._route(event.value, self.clock.now)

    # --- requests that the router keeps, and its ticks ----------------------------------------------------------

    def _offer_soon(self, now_s: float) -> None:
        """A replica may have room at now_s, a boundary of its that no event comes before."""
        if self._held and not self._offering:
            self._offering = True
            self.clock.at(now_s, ROUTER_TICK, self._offer)

    def _offer(self, event: Any) -> None:
        self._offering = False
        now_s = self.clock.now
        decision = self._decide(self._held[0], now_s)
        if not isinstance(decision, Send):
            return
        request = self._held.popleft()
        self._offer_soon(now_s)  # before the replica gets ahead of the clock, as it may when no event is due
        self.replicas[decision.replica].enqueue(request, now_s)

    def _tick(self, event: Any) -> None:
        assert isinstance(self.router, Ticking) and self._views is not None
        now_s = self.clock.now
        at_replicas = any(replica.outstanding for replica in self.replicas)
        if self._next == len(self.requests) and not (self._held or self._migrations.moving or at_replicas):
            return
        self.clock.at((event.value + 1) * self.router.tick_s, ROUTER_TICK, self._tick, event.value + 1)
        self._migrations.ask(self.router.tick(now_s, self._views.at(now_s)), now_s)
