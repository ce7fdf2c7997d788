"""Moves requests from one replica to another between two steps of the first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from simlora.cluster.actions import Migrate
from simlora.engines.base import Handover
from simlora.sim.clock import ROUTER_TICK, Clock
from simlora.sim.replica import EngineReplica


class Migrations:
    """Requests on their way. A replica's run in progress ends at its next boundary, where they leave it; they reach the
    other one at the same instant, which does not interrupt the step that it is in."""

    def __init__(
        self,
        clock: Clock,
        replicas: Sequence[Any],
        arrived: Callable[[int, int, float], None],
        schedule: Callable[[Any], None],
    ) -> None:
        """arrived: called with (request, replica that it goes to, time). schedule: makes the next boundary of a replica
        an event."""
        self._clock, self._replicas, self._arrived, self._schedule = clock, replicas, arrived, schedule
        self._asked: dict[int, list[Migrate]] = {}
        """Source -> what it was asked for since its last boundary."""
        self.moving = 0
        """Requests that are on no replica."""

    def ask(self, actions: Sequence[Migrate], now_s: float) -> None:
        """Carry out the actions at the sources' next boundaries."""
        sources = {}
        for action in actions:
            self._asked.setdefault(action.source, []).append(action)
            sources[action.source] = self._replicas[action.source]
        for source in sources.values():
            source.between_steps = self._leave
            source.end_run(now_s)
            self._schedule(source)

    def _leave(self, source: EngineReplica, now_s: float) -> None:
        engine = source.engine
        assert isinstance(engine, Handover)
        source.between_steps = None
        for action in self._asked.pop(source.index):
            for request in list(engine.movable())[: action.requests]:
                source.hand_over(request, now_s, engine.withdraw(request, now_s))
                self.moving += 1
                self._clock.at(now_s, ROUTER_TICK, self._arrive, (request.index, action.target))

    def _arrive(self, event: Any) -> None:
        request, target = event.value
        self.moving -= 1
        self._arrived(request, target, self._clock.now)
