"""Adapter copies in flight: from remote storage or disk into host memory, and over the host link into a slot.

Plain objects that their owner drives: they compute when the next copy event is due, and move on when told the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple


class SharedLink:
    """One PCIe or C2C link, disk or network. Every call costs O(log transfers); nothing happens between events.

    The link keeps how many bytes each of its transfers has received since it was last idle: a transfer that joins at
    level v with b bytes ends when the level reaches v + b, whoever else joins or leaves.
    """

    __slots__ = ("_clock_s", "_ends", "_heap", "_level", "bandwidth")

    def __init__(self, bandwidth: float) -> None:
        """bandwidth: bytes per second. Raises ValueError unless it is above 0."""
        if not bandwidth > 0:
            raise ValueError(f"bandwidth must be above 0, not {bandwidth}")
        self.bandwidth = bandwidth
        self._clock_s = 0.0
        self._level = 0.0
        self._ends: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []

    def __len__(self) -> int:
        """Transfers in progress."""
        return len(self._ends)

    def join(self, transfer: int, size_bytes: float, now_s: float) -> None:
        """A transfer begins; its id must not be on the link."""
        self._advance(now_s)
        if not self._ends:
            self._level, self._heap = 0.0, []
        end = self._level + size_bytes
        self._ends[transfer] = end
        heappush(self._heap, (end, transfer))

    def leave(self, transfer: int, now_s: float) -> None:
        """A transfer is given up."""
        self._advance(now_s)
        del self._ends[transfer]

    def next_end_s(self) -> float | None:
        """When the next transfer ends if none joins or leaves; None on an idle link."""
        self._drop_left()
        if not self._heap:
            return None
        rest = max(self._heap[0][0] - self._level, 0.0)
        return self._clock_s + rest * len(self._ends) / self.bandwidth

    def finish_next(self, now_s: float) -> int:
        """Take the transfer that ends at now_s, the time of next_end_s."""
        self._drop_left()
        self._advance(now_s)
        end, transfer = heappop(self._heap)
        self._level = end  # exact, so that equal transfers end together
        del self._ends[transfer]
        return transfer

    def advance_to(self, now_s: float) -> None:
        """Account for the time up to now_s, in which no transfer may end."""
        self._advance(now_s)

    def _advance(self, now_s: float) -> None:
        elapsed = now_s - self._clock_s
        self._clock_s = now_s
        if self._ends and elapsed > 0:
            self._level += elapsed * self.bandwidth / len(self._ends)

    def _drop_left(self) -> None:
        while self._heap and self._ends.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)


class Stage(NamedTuple):
    """One leg of a copy: latency, then size_bytes over a link."""

    link: str
    size_bytes: float
    latency_s: float = 0.0


class Completion(NamedTuple):
    """A copy that arrived."""

    adapter: int
    end_s: float
    start_s: float


@dataclass(slots=True, eq=False)
class _Copy:
    number: int
    adapter: int
    stages: tuple[Stage, ...]
    start_s: float
    next_stage: int = 0
    link: str | None = None
    """Where it transfers now; None while it waits for a latency."""


class CopyEngine:
    """Copies of one replica side by side, one at most of an adapter. Their places are their owner's business."""

    def __init__(self, links: Mapping[str, float]) -> None:
        """links: bytes per second by name.

        Raises:
            ValueError: a bandwidth that is not above 0.
        """
        self.links = {name: SharedLink(bandwidth) for name, bandwidth in links.items()}
        self._clock_s = 0.0
        self._numbers = 0
        self._copies: dict[int, _Copy] = {}
        self._by_adapter: dict[int, _Copy] = {}
        self._delayed: list[tuple[float, int]] = []
        self._done: list[tuple[float, int, Completion]] = []

    def __contains__(self, adapter: int) -> bool:
        return adapter in self._by_adapter

    def __len__(self) -> int:
        """Copies in flight."""
        return len(self._copies)

    def start(self, adapter: int, stages: Sequence[Stage], now_s: float) -> bool:
        """Begin a copy, after finishing everything that is due (the completions wait for the next advance_to). False:
        the adapter is in flight already, and nothing was started.

        Raises:
            KeyError: an unknown link.
            ValueError: time that goes back, or a negative size or latency.
        """
        self._run_to(now_s)
        if adapter in self._by_adapter:
            return False
        for stage in stages:
            if stage.size_bytes < 0 or stage.latency_s < 0:
                raise ValueError(f"adapter {adapter}: negative {stage}")
            if stage.link not in self.links:
                raise KeyError(stage.link)
        self._numbers += 1
        copy = _Copy(self._numbers, adapter, tuple(stages), now_s)
        self._copies[copy.number] = self._by_adapter[adapter] = copy
        self._next_leg(copy, now_s)
        return True

    def next_event_s(self) -> float | None:
        """When to call advance_to next: the end of a stage or of a latency; None without copies."""
        if self._done:
            return self._clock_s
        self._drop_cancelled()
        times = [end for link in self.links.values() if (end := link.next_end_s()) is not None]
        if self._delayed:
            times.append(self._delayed[0][0])
        return min(times, default=None)

    def advance_to(self, now_s: float) -> list[Completion]:
        """Move on to now_s; the copies that arrived since the last call, in order of arrival, then of start."""
        self._run_to(now_s)
        done, self._done = sorted(self._done), []
        return [completion for _, _, completion in done]

    def cancel(self, adapter: int, now_s: float) -> bool:
        """Give up a copy; False if none is in flight (it may have arrived just now)."""
        self._run_to(now_s)
        copy = self._by_adapter.get(adapter)
        if copy is None:
            return False
        self._forget(copy)
        if copy.link is not None:
            self.links[copy.link].leave(copy.number, now_s)
        return True

    def _run_to(self, now_s: float) -> None:
        if now_s < self._clock_s:
            raise ValueError(f"time goes back from {self._clock_s} to {now_s}")
        while (event := self._next_internal()) is not None and event[0] <= now_s:
            time_s, link = event
            self._clock_s = max(self._clock_s, time_s)
            if link is None:
                copy = self._copies[heappop(self._delayed)[1]]
                self._transfer(copy, self._clock_s)
            else:
                copy = self._copies[self.links[link].finish_next(self._clock_s)]
                copy.link = None
                self._next_leg(copy, self._clock_s)
        self._clock_s = now_s
        for shared in self.links.values():
            shared.advance_to(now_s)

    def _next_internal(self) -> tuple[float, str | None] | None:
        """The next event: (time, link that finishes a transfer, or None for the end of a latency)."""
        self._drop_cancelled()
        best: tuple[float, str | None] | None = (self._delayed[0][0], None) if self._delayed else None
        for name, link in self.links.items():
            end = link.next_end_s()
            if end is not None and (best is None or end < best[0]):
                best = end, name
        return best

    def _next_leg(self, copy: _Copy, now_s: float) -> None:
        """Begin the next stage, or finish the copy after the last."""
        if copy.next_stage == len(copy.stages):
            self._forget(copy)
            self._done.append((now_s, copy.number, Completion(copy.adapter, now_s, copy.start_s)))
            return
        latency_s = copy.stages[copy.next_stage].latency_s
        if latency_s > 0:
            heappush(self._delayed, (now_s + latency_s, copy.number))
        else:
            self._transfer(copy, now_s)

    def _transfer(self, copy: _Copy, now_s: float) -> None:
        stage = copy.stages[copy.next_stage]
        copy.next_stage += 1
        copy.link = stage.link
        self.links[stage.link].join(copy.number, stage.size_bytes, now_s)

    def _forget(self, copy: _Copy) -> None:
        del self._copies[copy.number], self._by_adapter[copy.adapter]

    def _drop_cancelled(self) -> None:
        while self._delayed and self._delayed[0][1] not in self._copies:
            heappop(self._delayed)
