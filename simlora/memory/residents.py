"""Which adapters a replica holds, and who leaves: eviction policies, one tier's residents, and vLLM's two tiers.

Every adapter in a slot is registered in host memory too, so leaving the host cache empties its slot; with max_cpu_loras
equal to max_loras each GPU eviction is a host eviction. Both tiers are touched whenever an adapter is used. Source:
vLLM `LRUCacheWorkerLoRAManager._apply_adapters` and `LRUCacheLoRAModelManager.activate_adapter`. One difference: vLLM
touches the adapters of a step one by one, so it can evict one that the same step needs and load it twice; here adapters
that are held are never victims.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import NamedTuple, Protocol


class EvictionPolicy(Protocol):
    """Candidates for eviction and their order. Times are simulated seconds and never go back."""

    def record_use(self, adapter: int, now_s: float) -> None:
        """An adapter was used, candidate or not."""

    def insert(self, adapter: int, now_s: float) -> None:
        """The adapter becomes a candidate, most recently used now. It must not be one."""

    def discard(self, adapter: int) -> None:
        """The adapter is no candidate any more; nothing happens if it was none."""

    def take(self, adapter: int, now_s: float) -> None:
        """`record_use`, then `discard`."""

    def give_back(self, adapter: int, now_s: float) -> None:
        """`record_use`, then `insert`."""

    def victim(self) -> int | None:
        """The next adapter to leave, still a candidate; None if there is none."""

    def __len__(self) -> int: ...


class Lru:
    """The candidate that was used longest ago leaves first. O(1) per call."""

    __slots__ = ("_order",)

    def __init__(self) -> None:
        self._order: OrderedDict[int, None] = OrderedDict()

    def record_use(self, adapter: int, now_s: float) -> None:
        if adapter in self._order:
            self._order.move_to_end(adapter)

    def insert(self, adapter: int, now_s: float) -> None:
        self._order[adapter] = None

    def discard(self, adapter: int) -> None:
        self._order.pop(adapter, None)

    def take(self, adapter: int, now_s: float) -> None:
        self._order.pop(adapter, None)

    def give_back(self, adapter: int, now_s: float) -> None:
        self._order[adapter] = None

    def victim(self) -> int | None:
        return next(iter(self._order), None)

    def __len__(self) -> int:
        return len(self._order)


class WeightedLru:
    """The candidate with the smallest decayed use count leaves first; among equals the one used longest ago.

    A use counts 2 ** -(age / half_life_s). All counts decay alike, so the order of two adapters changes only when one
    of them is used: log2 of the sum of 2 ** (use time / half_life_s) orders them for good. A short half-life approaches
    LRU, a long one counts all uses (LFU). Counts outlive an eviction, so a popular adapter that comes back is popular.
    O(log n) per call, amortised.
    """

    __slots__ = ("_entries", "_half_life_s", "_heap", "_sequence", "_weight")

    def __init__(self, half_life_s: float = 60.0) -> None:
        """Raises ValueError unless half_life_s > 0."""
        if not half_life_s > 0:
            raise ValueError(f"half_life_s must be above 0, not {half_life_s}")
        self._half_life_s = half_life_s
        self._weight: dict[int, float] = {}
        self._entries: dict[int, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, int]] = []
        self._sequence = 0

    def record_use(self, adapter: int, now_s: float) -> None:
        use = now_s / self._half_life_s
        before = self._weight.get(adapter)
        self._weight[adapter] = use if before is None else _log2_sum(before, use)
        if adapter in self._entries:
            self._push(adapter)

    def insert(self, adapter: int, now_s: float) -> None:
        self._weight.setdefault(adapter, now_s / self._half_life_s)
        self._push(adapter)

    def discard(self, adapter: int) -> None:
        self._entries.pop(adapter, None)

    def take(self, adapter: int, now_s: float) -> None:
        self.discard(adapter)
        self.record_use(adapter, now_s)

    def give_back(self, adapter: int, now_s: float) -> None:
        self.record_use(adapter, now_s)
        self.insert(adapter, now_s)

    def victim(self) -> int | None:
        while self._heap:
            weight, sequence, adapter = self._heap[0]
            if self._entries.get(adapter) == (weight, sequence):
                return adapter
            heappop(self._heap)  # an older entry of an adapter that was used or left
        return None

    def __len__(self) -> int:
        return len(self._entries)

    def _push(self, adapter: int) -> None:
        self._sequence += 1
        entry = self._weight[adapter], self._sequence
        self._entries[adapter] = entry
        heappush(self._heap, (*entry, adapter))
        if len(self._heap) > 64 + 4 * len(self._entries):
            self._heap = [(*live, adapter) for adapter, live in self._entries.items()]
            heapify(self._heap)


def _log2_sum(a: float, b: float) -> float:
    """log2(2 ** a + 2 ** b) without overflow."""
    low, high = (a, b) if a < b else (b, a)
    return high + math.log2(1.0 + 2.0 ** max(low - high, -1000.0))


def make_policy(name: str) -> EvictionPolicy:
    """The policy of a scenario's engine.eviction: "lru" or "weighted-lru". Raises ValueError for another name."""
    if name == "lru":
        return Lru()
    if name == "weighted-lru":
        return WeightedLru()
    raise ValueError(f"no eviction policy {name!r}")


class ResidentSet:
    """At most capacity adapters. Those in use and those pinned are never evicted; the policy orders the others.

    An adapter that is being loaded is a resident in use: it holds its place. All calls are O(1) with Lru and O(log n)
    with WeightedLru.
    """

    __slots__ = ("_pinned", "_policy", "_uses", "capacity", "in_use")

    def __init__(self, capacity: int, policy: EvictionPolicy | None = None, pinned: Iterable[int] = ()) -> None:
        """pinned: ids that are never evicted once they are resident. Raises ValueError for a capacity below 1, and if
        there are more pinned ids than places."""
        self._pinned = frozenset(pinned)
        if capacity < max(1, len(self._pinned)):
            raise ValueError(f"{len(self._pinned)} pinned adapters in {capacity} places")
        self.capacity = capacity
        self.in_use = 0
        """Residents that somebody holds."""
        self._policy: EvictionPolicy = Lru() if policy is None else policy
        self._uses: dict[int, int] = {}

    def __contains__(self, adapter: int) -> bool:
        return adapter in self._uses

    def __len__(self) -> int:
        return len(self._uses)

    def __iter__(self) -> Iterator[int]:
        """Residents in the order in which they came."""
        return iter(self._uses)

    def uses(self, adapter: int) -> int:
        """How many hold the adapter now; 0 if it is idle or not resident."""
        return self._uses.get(adapter, 0)

    def is_pinned(self, adapter: int) -> bool:
        """The adapter never leaves once it is resident."""
        return adapter in self._pinned

    def use(self, adapter: int) -> None:
        """One more holder; the adapter cannot be evicted until as many released it. Raises KeyError if not resident."""
        count = self._uses[adapter]
        self._uses[adapter] = count + 1
        if count == 0:
            self.in_use += 1
            self._policy.discard(adapter)

    def acquire(self, adapter: int, now_s: float) -> None:
        """`touch`, then `use`."""
        count = self._uses[adapter]
        self._uses[adapter] = count + 1
        if count:
            self._policy.record_use(adapter, now_s)
        else:
            self.in_use += 1
            self._policy.take(adapter, now_s)

    def release(self, adapter: int, now_s: float) -> None:
        """One holder less; with the last one gone the adapter may be evicted, most recently used now.

        Raises KeyError if it is not resident, ValueError if nobody held it.
        """
        count = self._uses[adapter]
        if count == 0:
            raise ValueError(f"adapter {adapter} is released more often than used")
        self._uses[adapter] = count - 1
        if count == 1:
            self.in_use -= 1
            if adapter not in self._pinned:
                self._policy.give_back(adapter, now_s)
                return
        self._policy.record_use(adapter, now_s)

    def touch(self, adapter: int, now_s: float) -> None:
        """The adapter was used now, without being held. Raises KeyError if not resident."""
        if adapter not in self._uses:
            raise KeyError(adapter)
        self._policy.record_use(adapter, now_s)

    def can_add(self) -> bool:
        """A place is free or can be freed."""
        return len(self._uses) < self.capacity or len(self._policy) > 0

    def victim(self) -> int | None:
        """Who would leave if an adapter were added now; None if a place is free, or if nobody may leave."""
        return None if len(self._uses) < self.capacity else self._policy.victim()

    def add(self, adapter: int, now_s: float) -> int | None:
        """Make the adapter resident, idle; returns the adapter evicted for it, if any.

        Raises ValueError if it is resident already, RuntimeError if all residents are in use or pinned.
        """
        if adapter in self._uses:
            raise ValueError(f"adapter {adapter} is already resident")
        victim = None
        if len(self._uses) >= self.capacity:
            victim = self._policy.victim()
            if victim is None:
                raise RuntimeError(f"all {self.capacity} resident adapters are in use or pinned")
            self.remove(victim)
        self._uses[adapter] = 0
        self._policy.record_use(adapter, now_s)
        if adapter not in self._pinned:
            self._policy.insert(adapter, now_s)
        return victim

    def remove(self, adapter: int) -> None:
        """The adapter leaves, pinned or not. Raises KeyError if not resident, RuntimeError if it is in use."""
        if self._uses[adapter]:
            raise RuntimeError(f"adapter {adapter} is in use")
        del self._uses[adapter]
        self._policy.discard(adapter)

    def check(self) -> None:
        """Raises RuntimeError unless capacity is kept and exactly the idle, unpinned residents may leave."""
        held = sum(1 for count in self._uses.values() if count > 0)
        pinned_idle = sum(1 for adapter in self._pinned if self._uses.get(adapter) == 0)
        candidates = len(self._uses) - held - pinned_idle
        if len(self._uses) > self.capacity or held != self.in_use or len(self._policy) != candidates:
            state = f"{len(self._uses)} residents in {self.capacity} places, {held} held, {len(self._policy)} may leave"
            raise RuntimeError(state)


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
            self.slots.acquire(adapter, now_s)
            self.host.acquire(adapter, now_s)
            return _IN_SLOT
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
