"""Which adapters the planned step serves, and whether another one would find a slot."""

from __future__ import annotations

from simlora.engines.vllm.waiting import WaitingQueue
from simlora.latency.step import GPU
from simlora.memory.residents import AdapterTiers

TIER_CODE = {"gpu": 0, "host": 1, "disk": 2, "remote": 3}


class AdapterSlots:
    """Requests per adapter in the planned step, on top of the residency in tiers.

    At most max_loras distinct adapters fit one step. Pinned adapters keep their slots, so the others share the rest,
    and a request of a pinned adapter never waits for one.
    """

    def __init__(
        self, max_loras: int, pinned: frozenset[int], tiers: AdapterTiers | None, waiting: WaitingQueue
    ) -> None:
        self.active: dict[int, int] = {}
        """Adapter -> its requests in the step."""
        self.tiers = tiers
        self.evictions = 0
        self.tier_counts = [0, 0, 0, 0]
        """Admissions with an adapter by where it was found (TIER_CODE)."""
        self._pinned, self._waiting = pinned, waiting
        self._places = max_loras - len(pinned)
        self._taken = 0
        self.full = False
        """Only adapters that already have a place can join (with LoRA off there is none to wait for)."""
        for adapter in pinned:
            waiting.activate(adapter)

    def _take(self, change: int) -> None:
        """Places that are taken in the step, more or less."""
        self._taken += change
        self.full = 0 < self._places <= self._taken

    def serves(self, adapter: int) -> bool:
        """A request of this adapter needs no further place."""
        return not adapter or adapter in self.active or adapter in self._pinned

    def join(self, adapter: int, now_s: float) -> str:
        """One more request of the adapter; returns the tier it was found in."""
        requests = self.active.get(adapter, 0)
        self.active[adapter] = requests + 1
        tier = GPU if requests else self._activate(adapter, now_s)
        self.tier_counts[TIER_CODE[tier]] += 1
        return tier

    def leave(self, adapter: int, now_s: float) -> None:
        """One request of the adapter less."""
        requests = self.active[adapter] - 1
        if requests:
            self.active[adapter] = requests
            return
        del self.active[adapter]
        if adapter not in self._pinned:
            self._take(-1)
            self._waiting.deactivate(adapter)
        assert self.tiers is not None
        self.tiers.release(adapter, now_s)

    def reserve(self, adapter: int, now_s: float) -> str:
        """A copy into a slot begins: the place is taken until `arrived`. Returns the tier it is copied from."""
        self._take(1)
        assert self.tiers is not None
        tier, slot_victim, _ = self.tiers.acquire(adapter, now_s)
        if slot_victim is not None:
            self.evictions += 1
        return tier

    def arrived(self, adapter: int, now_s: float) -> None:
        """The copy is in its slot, where it stays until its requests join or another adapter needs the place."""
        self._take(-1)
        assert self.tiers is not None
        self.tiers.release(adapter, now_s)

    def _activate(self, adapter: int, now_s: float) -> str:
        if adapter not in self._pinned:
            self._taken += 1
            self.full = 0 < self._places <= self._taken
            self._waiting.activate(adapter)
        assert self.tiers is not None
        tier, slot_victim, _ = self.tiers.acquire(adapter, now_s)
        if slot_victim is not None:
            self.evictions += 1
        return tier
