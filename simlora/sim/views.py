"""Stale views: what a router knows of a replica is its state at the last scrape.

Scrapes are not events. A view asked for at now_s is the state at floor((now_s - delay_s) / scrape_s) * scrape_s; it is
taken when somebody asks, or before the replica is brought past that instant.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import floor
from typing import Any, overload

from simlora.engines.view import View


class StaleViews:
    """Views of several replicas, scraped every scrape_s seconds (0: always fresh) and delay_s old on arrival."""

    def __init__(self, replicas: Sequence[Any], scrape_s: float, delay_s: float) -> None:
        self._replicas, self._scrape_s, self._delay_s = replicas, scrape_s, delay_s
        self._frozen: list[deque[tuple[int, View]]] = [deque() for _ in replicas]
        """Of each replica: its views at the ticks that a router may still ask for, as far as they are known."""

    def at(self, now_s: float) -> Sequence[View]:
        """One view per replica."""
        if self._scrape_s <= 0:
            return FreshViews(self._replicas, now_s)
        tick = floor((now_s - self._delay_s) / self._scrape_s)
        past = tick * self._scrape_s < now_s
        return [
            self._view(replica, frozen, tick, past)
            for replica, frozen in zip(self._replicas, self._frozen, strict=True)
        ]

    def _view(self, replica: Any, frozen: deque[tuple[int, View]], tick: int, past: bool) -> View:
        for at_tick, view in frozen:
            if at_tick >= tick:
                return view
        view = self._take(replica, tick)
        if past:  # nothing that is still to come can change it
            frozen.append((tick, view))
            while len(frozen) > 1 and frozen[1][0] <= tick:
                frozen.popleft()
        return view

    def _take(self, replica: Any, tick: int) -> View:
        time_s = max(0.0, tick * self._scrape_s)
        replica.advance(time_s)
        return replica.view_at(time_s)  # type: ignore[no-any-return]

    def keep(self, replica: Any, now_s: float) -> None:
        """The replica is about to be brought to now_s, or to get a request then: keep its state at the ticks until then
        that a router may still ask for."""
        if self._scrape_s <= 0:
            return
        frozen = self._frozen[replica.index]
        last = floor(now_s / self._scrape_s)
        if last * self._scrape_s == now_s:  # a change at the very tick is seen by that scrape
            last -= 1
        oldest = floor((now_s - self._delay_s) / self._scrape_s)
        for tick in range(max(oldest, frozen[-1][0] + 1 if frozen else 0), last + 1):
            frozen.append((tick, self._take(replica, tick)))
        while len(frozen) > 1 and frozen[1][0] <= oldest:
            frozen.popleft()


class FreshViews(Sequence[View]):
    """Views of now, made when they are looked at: a router that needs one of a thousand pays for one."""

    def __init__(self, replicas: Sequence[Any], now_s: float) -> None:
        self._replicas, self._now_s = replicas, now_s

    def __len__(self) -> int:
        return len(self._replicas)

    @overload
    def __getitem__(self, index: int) -> View: ...
    @overload
    def __getitem__(self, index: slice) -> list[View]: ...
    def __getitem__(self, index: int | slice) -> View | list[View]:
        if isinstance(index, slice):
            return [self._view(replica) for replica in self._replicas[index]]
        return self._view(self._replicas[index])

    def _view(self, replica: Any) -> View:
        replica.advance(self._now_s)
        return replica.view_at(self._now_s)  # type: ignore[no-any-return]
