"""The adapters that one tier holds: the slots of a GPU, or the cache in host memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from simlora.memory.eviction import EvictionPolicy, Lru


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

    def release(self, adapter: int, now_s: float) -> None:
        """One holder less; with the last one gone the adapter may be evicted, most recently used now.

        Raises KeyError if it is not resident, ValueError if nobody held it.
        """
        count = self._uses[adapter]
        if count == 0:
            raise ValueError(f"adapter {adapter} is released more often than used")
        self._uses[adapter] = count - 1
        self._policy.record_use(adapter, now_s)
        if count == 1:
            self.in_use -= 1
            if adapter not in self._pinned:
                self._policy.insert(adapter, now_s)

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
