"""Memory counted in equal units and handed out by count. A pool never evicts: on a shortage its owner decides."""

from __future__ import annotations

KV, ADAPTER = "kv", "adapter"
"""Kinds of use."""


class Pool:
    """Invariant: free + used of all kinds = total."""

    __slots__ = ("_used", "free_units", "total")

    def __init__(self, total: int) -> None:
        """total: units. Raises ValueError for fewer than none."""
        if total < 0:
            raise ValueError(f"a pool of {total} units")
        self.total = self.free_units = total
        self._used: dict[str, int] = {}

    def allocate(self, units: int, kind: str = KV) -> bool:
        """Take units for a kind of use; False, and nothing taken, if fewer are free."""
        if units > self.free_units:
            return False
        if units < 0:
            raise ValueError(f"cannot allocate {units} units")
        self.free_units -= units
        self._used[kind] = self._used.get(kind, 0) + units
        return True

    def free(self, units: int, kind: str = KV) -> None:
        """Give units of a kind back. Raises ValueError if that many are not in use."""
        used = self._used.get(kind, 0)
        if not 0 <= units <= used:
            raise ValueError(f"cannot free {units} of {used} units of {kind}")
        self._used[kind] = used - units
        self.free_units += units

    def used(self, kind: str = KV) -> int:
        """Units in use for a kind."""
        return self._used.get(kind, 0)

    def check(self) -> None:
        """Raises RuntimeError if units were lost or invented."""
        if self.free_units < 0 or self.free_units + sum(self._used.values()) != self.total:
            raise RuntimeError(f"pool of {self.total}: {self.free_units} free, in use {self._used}")
