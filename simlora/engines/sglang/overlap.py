"""Overlapped loading of SGLang: adapters are copied on a side stream while their requests are held back.

Source: sgl-project/sglang, lora/lora_overlap_loader.py (2026). There, a load that ends between two iterations is seen
by the later one, as here. The base model's slot is only zeroed on the GPU, which takes no time here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simlora.engines.base import NEVER_S
from simlora.engines.sglang.slots import BASE, Places, SlotPool
from simlora.engines.vllm.adapter_slots import TIER_CODE
from simlora.memory.copies import CopyEngine, Stage

Stages = Callable[[int, str], Sequence[Stage]]
"""(own rank, tier) -> legs of the copy into a slot."""


class OverlapLoader:
    """Loads in flight. It tells the copy engine the time only at that one's own events and at starts, so that it does
    not matter how often it is asked."""

    def __init__(self, copies: CopyEngine, stages: Stages, host_link: str) -> None:
        """host_link: name of the link whose copies slow the GPU down."""
        self._copies, self._stages, self._host_link = copies, stages, host_link
        self._in_flight: set[int] = set()
        self._next_s = NEVER_S
        self._tiers: dict[int, int] = {}
        self.loads_by_rank: dict[int, int] = {}
        """Own rank -> loads begun."""

    @property
    def in_flight(self) -> frozenset[int]:
        """Adapters that hold a slot but are not complete."""
        return frozenset(self._in_flight)

    @property
    def copying(self) -> bool:
        """Bytes go over the host link."""
        return len(self._copies.links[self._host_link]) > 0

    def next_s(self) -> float:
        """When a copy takes its next step; NEVER_S without copies."""
        return self._next_s

    def finish(self, now_s: float) -> None:
        """Copies that are complete by now_s."""
        if self._next_s <= now_s:
            self._advance(now_s)

    def ready(self, adapter: int, rank: int, places: Places, pool: SlotPool, now_s: float) -> bool:
        """Whether a request of an adapter with no running request may start; begins to load it if there is room."""
        if adapter in self._in_flight:
            return False
        if adapter in pool:
            return True
        if not places.allows(adapter, self._in_flight):
            return False
        held = self._in_flight | places.running.keys()
        for loaded in pool.prepare(held | {adapter}, held):
            self._tiers[adapter] = TIER_CODE[loaded.tier]
            self.loads_by_rank[rank] = self.loads_by_rank.get(rank, 0) + 1
            self._in_flight.add(adapter)
            self._copies.start(adapter, self._stages(rank, loaded.tier), now_s)
            self._advance(now_s)
        return adapter == BASE or adapter not in self._in_flight

    def used(self, adapter: int) -> int:
        """A request starts: the tier that its adapter was loaded from if it is the first one since, else 0."""
        return self._tiers.pop(adapter, 0)

    def _advance(self, now_s: float) -> None:
        for completion in self._copies.advance_to(now_s):
            self._in_flight.discard(completion.adapter)
        event_s = self._copies.next_event_s()
        self._next_s = NEVER_S if event_s is None else event_s
