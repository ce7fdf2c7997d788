"""What a replica's state was at every instant, written down at each change, to compare stale views with."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import floor
from typing import Any

from simlora.cluster.router import Decision, Send
from simlora.engines.view import View
from simlora.engines.vllm.replica import VllmReplica


class RecordingRouter:
    """Sends requests in turn, and keeps the views it was shown: (time, one view per replica)."""

    needs_views = True
    oblivious = False

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas
        self.seen: list[tuple[float, list[View]]] = []

    def choose(self, request: Any, views: Sequence[View], now_s: float) -> Decision:
        self.seen.append((now_s, list(views)))
        return Send((len(self.seen) - 1) % self._replicas)


class RecordingReplica(VllmReplica):
    """Writes its state down after every change. Meant for step by step, where nothing happens ahead of the clock."""

    @property
    def history(self) -> list[tuple[float, View]]:
        """(time, state from then on), oldest first."""
        if not hasattr(self, "_history"):
            self._history = [(0.0, self._state())]
        return self._history

    def state_at(self, time_s: float) -> View:
        """The state at time_s, a change at that very instant included."""
        position = bisect_right(self.history, time_s, key=lambda entry: entry[0])
        return self.history[max(position, 1) - 1][1]

    def enqueue(self, request: int, now_s: float) -> None:
        self.history  # noqa: B018  the state before the first change
        super().enqueue(request, now_s)
        if self.history[-1][0] <= now_s:
            self.history.append((now_s, self._state()))

    def play(self, until_s: float, single: bool = False, last: bool = False) -> bool:
        if last:
            return super().play(until_s, single, last)
        while (now_s := self.next_change_s()) <= until_s:
            planned = super().play(now_s, single=True)
            if planned:
                self.history.append((now_s, self._state()))
            if single:
                return planned
        return False

    def _state(self) -> View:
        engine = self.engine
        used = (engine.kv.total - engine.kv.free) / engine.kv.total
        return View(
            running=len(engine.running),
            waiting=engine.waiting.size,
            kv_usage=used,
            adapters=frozenset(engine.slots.active),
            max_loras=engine.limits.max_loras,
            outstanding=self.outstanding,
        )


def tick_before(now_s: float, scrape_s: float, delay_s: float) -> float:
    """Time of the scrape that a router knows at now_s."""
    return floor((now_s - delay_s) / scrape_s) * scrape_s if scrape_s > 0 else now_s


def same_view(one: View, other: View) -> bool:
    """Equal, but for rounding of the KV usage, and for idle time, which grows without a change."""
    same = one._replace(kv_usage=0.0, idle_s=0.0) == other._replace(kv_usage=0.0, idle_s=0.0)
    return same and abs(one.kv_usage - other.kv_usage) < 1e-12
