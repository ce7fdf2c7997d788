"""A link whose bandwidth all transfers on it share equally (processor sharing), in closed form between events."""

from __future__ import annotations

from heapq import heappop, heappush


class SharedLink:
    """One PCIe or C2C link, disk or network. Every call costs O(log transfers); nothing happens between events.

    The link keeps how many bytes each of its transfers has received since it was last idle: a transfer that joins at
    level v with b bytes ends when the level reaches v + b, whoever else joins or leaves.
    """

    __slots__ = ("_clock_s", "_ends", "_heap", "_level", "bandwidth", "busy_s", "served_bytes")

    def __init__(self, bandwidth: float) -> None:
        """bandwidth: bytes per second. Raises ValueError unless it is above 0."""
        if not bandwidth > 0:
            raise ValueError(f"bandwidth must be above 0, not {bandwidth}")
        self.bandwidth = bandwidth
        self.busy_s = 0.0
        """Time with at least one transfer."""
        self.served_bytes = 0.0
        """Bytes moved, those of cancelled transfers included."""
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
            self.busy_s += elapsed
            self.served_bytes += elapsed * self.bandwidth
            self._level += elapsed * self.bandwidth / len(self._ends)

    def _drop_left(self) -> None:
        while self._heap and self._ends.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
