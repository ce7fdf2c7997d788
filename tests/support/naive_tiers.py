"""Adapter slots over a host cache as plain lists, least recently used first. The slow twin of AdapterTiers."""

from __future__ import annotations

from collections.abc import Iterable


class NaiveTiers:
    """Every adapter in a slot is in host memory too; adapters in use and pinned ones never leave."""

    def __init__(self, slots: int, host: int, pinned: Iterable[int] = (), remote: bool = False) -> None:
        self.capacity, self.host_capacity, self.pinned = slots, host, set(pinned)
        self.slots, self.host = sorted(self.pinned), sorted(self.pinned)
        self.in_use: set[int] = set()
        self.on_disk = set(self.pinned) if remote else None

    def activate(self, adapter: int) -> tuple[str, int | None]:
        """(the tier it was found in, the adapter that lost its slot for it). It is in use from now on."""
        victim = None
        if adapter in self.slots:
            tier = "gpu"
        elif adapter in self.host:
            tier = "host"
        else:
            tier = "disk" if self.on_disk is None or adapter in self.on_disk else "remote"
            if self.on_disk is not None:
                self.on_disk.add(adapter)
            if len(self.host) == self.host_capacity:
                gone = self._first_idle(self.host)
                self.host.remove(gone)
                if gone in self.slots:
                    self.slots.remove(gone)
                    victim = gone
            self.host.append(adapter)
        if adapter not in self.slots:
            if len(self.slots) == self.capacity:
                victim = self._first_idle(self.slots)
                self.slots.remove(victim)
            self.slots.append(adapter)
        self._touch(adapter)
        self.in_use.add(adapter)
        return tier, victim

    def release(self, adapter: int) -> None:
        self.in_use.discard(adapter)
        self._touch(adapter)

    def _touch(self, adapter: int) -> None:
        for tier in (self.slots, self.host):
            tier.remove(adapter)
            tier.append(adapter)

    def _first_idle(self, tier: list[int]) -> int:
        return next(a for a in tier if a not in self.in_use and a not in self.pinned)
