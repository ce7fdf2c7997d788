"""The tiers an adapter passes on its way to a GPU slot, with vLLM's rules.

Every adapter in a slot is registered in host memory too, so leaving the host cache empties its slot; with max_cpu_loras
equal to max_loras each GPU eviction is a host eviction. Both tiers are touched whenever an adapter is used. Source:
vLLM `LRUCacheWorkerLoRAManager._apply_adapters` and `LRUCacheLoRAModelManager.activate_adapter`. One difference: vLLM
touches the adapters of a step one by one, so it can evict one that the same step needs and load it twice; here adapters
that are held are never victims.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from simlora.memory.resident import ResidentSet

GPU, HOST, DISK, REMOTE = "gpu", "host", "disk", "remote"
"""Tiers, fastest first."""


class Activation(NamedTuple):
    """Where an adapter was found, and who left for it."""

    tier: str
    slot_victim: int | None
    """Adapter whose slot was taken or emptied."""
    host_victim: int | None
    """Adapter that left host memory; the same as slot_victim if it was in a slot."""


_IN_SLOT = Activation(GPU, None, None)


class AdapterTiers:
    """Slots and host cache of one replica, on top of disk and, optionally, remote storage."""

    __slots__ = ("_on_disk", "host", "slots")

    def __init__(self, slots: ResidentSet, host: ResidentSet, remote: bool = False) -> None:
        """remote: adapters reach the disk at their first use. Raises ValueError if host is smaller than slots."""
        if host.capacity < slots.capacity:
            raise ValueError(f"host cache of {host.capacity} below {slots.capacity} slots")
        self.slots = slots
        self.host = host
        self._on_disk: set[int] | None = set() if remote else None

    def preload(self, host: Iterable[int], gpu: Iterable[int]) -> None:
        """Set what is resident at the start, oldest first. Adapters of gpu are put into the host cache as well."""
        in_slots = list(gpu)
        held = frozenset(in_slots)
        cached = [adapter for adapter in host if adapter not in held]
        for adapter in [*cached, *in_slots]:
            self.host.add(adapter, 0.0)
            if self._on_disk is not None:
                self._on_disk.add(adapter)
        for adapter in in_slots:
            self.slots.add(adapter, 0.0)

    def tier(self, adapter: int) -> str:
        """The fastest tier that holds the adapter now."""
        if adapter in self.slots:
            return GPU
        if adapter in self.host:
            return HOST
        return DISK if self._on_disk is None or adapter in self._on_disk else REMOTE

    def can_activate(self, adapter: int) -> bool:
        """The adapter is in a slot, or one can be had."""
        if adapter in self.slots:
            return True
        if adapter in self.host or len(self.host) < self.host.capacity:
            return self.slots.can_add()
        victim = self.host.victim()
        return victim is not None and (victim in self.slots or self.slots.can_add())

    def activate(self, adapter: int, now_s: float) -> Activation:
        """Bring the adapter into a slot, and count it as used now. Raises RuntimeError if no place can be had.

        In one step, hold the adapters that are resident before activating those that are not.
        """
        found = self.tier(adapter)
        if found == GPU:
            self.host.touch(adapter, now_s)
            self.slots.touch(adapter, now_s)
            return Activation(GPU, None, None)
        if not self.can_activate(adapter):
            raise RuntimeError(f"no slot for adapter {adapter}: all are in use or pinned")
        slot_victim = host_victim = None
        if found == HOST:
            self.host.touch(adapter, now_s)
        else:
            host_victim = self._register(adapter, now_s)
            if host_victim is not None and host_victim in self.slots:
                self.slots.remove(host_victim)
                slot_victim = host_victim
        evicted = self.slots.add(adapter, now_s)
        return Activation(found, slot_victim if evicted is None else evicted, host_victim)

    def acquire(self, adapter: int, now_s: float) -> Activation:
        """`activate` and `use` in one; cheap where the adapter is in a slot."""
        if adapter in self.slots:
            found = _IN_SLOT
            self.slots.touch(adapter, now_s)
            self.host.touch(adapter, now_s)
        else:
            found = self.activate(adapter, now_s)
        self.slots.use(adapter)
        self.host.use(adapter)
        return found

    def use(self, adapter: int) -> None:
        """Hold the adapter in both tiers. Raises KeyError if it is not in a slot."""
        self.slots.use(adapter)
        self.host.use(adapter)

    def release(self, adapter: int, now_s: float) -> None:
        """Let go of it once; it counts as used now."""
        self.slots.release(adapter, now_s)
        self.host.release(adapter, now_s)

    def check(self) -> None:
        """Raises RuntimeError unless both tiers are consistent and every slot's adapter is registered."""
        self.slots.check()
        self.host.check()
        for adapter in self.slots:
            if adapter not in self.host or self.slots.uses(adapter) != self.host.uses(adapter):
                raise RuntimeError(f"adapter {adapter} in a slot, but not alike in host memory")

    def _register(self, adapter: int, now_s: float) -> int | None:
        if self._on_disk is not None:
            self._on_disk.add(adapter)
        return self.host.add(adapter, now_s)
