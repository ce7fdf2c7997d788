"""Adapters on their way into slots on a side stream, while steps go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from simlora.engines.base import NEVER_S
from simlora.memory.copies import Completion, CopyEngine, Stage

Stages = Callable[[int, str], Sequence[Stage]]
"""(rank, tier) -> the legs of a copy."""


class SideCopies:
    """Copies in flight of one engine. `due_s` is when something about them changes next."""

    def __init__(self, copies: CopyEngine, stages: Stages, device_link: str) -> None:
        """device_link: the link whose transfers slow the steps down."""
        self._copies, self._stages = copies, stages
        self._device = copies.links[device_link]
        self._tiers: dict[int, str] = {}
        self.due_s = NEVER_S

    def __contains__(self, adapter: int) -> bool:
        return adapter in self._tiers

    def __iter__(self) -> Iterator[int]:
        return iter(self._tiers)

    def __len__(self) -> int:
        return len(self._tiers)

    @property
    def copying(self) -> bool:
        """Bytes cross the device's link now."""
        return len(self._device) > 0

    def start(self, adapter: int, rank: int, tier: str, now_s: float) -> None:
        """Begin to copy an adapter, found in `tier`, into the slot that is reserved for it."""
        self._copies.start(adapter, self._stages(rank, tier), now_s)
        self._tiers[adapter] = tier
        self.due_s = self._next_s()

    def advance(self, now_s: float) -> list[tuple[Completion, str]]:
        """What arrived by now_s, and the tiers it came from. Call it when due_s has come, not before: the shares of a
        link are summed up between calls, and must not depend on how often somebody looks."""
        arrived = self._copies.advance_to(now_s)
        while (due_s := self._next_s()) <= now_s:  # rounding can leave an event at now_s
            arrived += self._copies.advance_to(now_s)
        self.due_s = due_s
        return [(done, self._tiers.pop(done.adapter)) for done in arrived]

    def _next_s(self) -> float:
        event_s = self._copies.next_event_s()
        return NEVER_S if event_s is None else event_s
