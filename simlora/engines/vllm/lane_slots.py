"""Adapter slots of a pipeline: each batch may hold max_loras adapters, and all batches in flight share the slots.

The scheduler counts the adapters of the batch that it forms, not those of the batches in flight (vLLM's
`scheduled_loras`). The workers keep max_loras slots and load what a batch lacks before they run it. Stages run the
batches one after the other, so an adapter of a batch in flight may lose its slot to the next batch; it is loaded again
when its requests come round. Which one loses it: that of the batch planned longest ago, after all that nobody uses.
"""

from __future__ import annotations

from simlora.engines.decode_batch import DecodeBatch
from simlora.engines.vllm.adapter_slots import AdapterSlots
from simlora.engines.vllm.waiting import WaitingQueue
from simlora.memory.residents import AdapterTiers


class Lane:
    """Requests that go through the stages in one batch, step after step."""

    __slots__ = ("active", "batch", "decodes", "detached", "first", "flying", "returned_s", "step")

    def __init__(self, decodes: DecodeBatch) -> None:
        self.decodes = decodes
        self.step = -1
        """Its last planned step; lanes count their own."""
        self.active: dict[int, int] = {}
        """Adapter -> its requests in the lane."""
        self.first: list[int] = []
        """Requests whose prompt is complete with the batch in flight."""
        self.detached: list[int] = []
        """Preempted while in flight: they go back to the queue when their token is out."""
        self.flying = False
        self.batch = -1
        """Number of its last batch, over all lanes."""
        self.returned_s = 0.0
        """When its last batch came back."""


class LaneSlots(AdapterSlots):
    """AdapterSlots of the lane that is planned now (`bind`), over slots that all lanes share."""

    def __init__(
        self,
        max_loras: int,
        pinned: frozenset[int],
        tiers: AdapterTiers | None,
        waiting: WaitingQueue,
        lanes: list[Lane],
    ) -> None:
        super().__init__(max_loras, pinned, tiers, waiting)
        self._lanes = lanes
        self.active = lanes[0].active
        self.out: set[int] = set()
        """Adapters of some lane that lost their slot."""

    def bind(self, lane: Lane) -> None:
        """Look at the slots as the batch of this lane does."""
        before, after = self.active, lane.active
        for adapter in before:
            if adapter not in after and adapter not in self._pinned:
                self._waiting.deactivate(adapter)
        for adapter in after:
            if adapter not in before and adapter not in self._pinned:
                self._waiting.activate(adapter)
        self.active = after
        self._take(sum(adapter not in self._pinned for adapter in after) - self._taken)

    def leave(self, adapter: int, now_s: float) -> None:
        if adapter not in self.out:
            super().leave(adapter, now_s)
            return
        requests = self.active[adapter] - 1
        if requests:
            self.active[adapter] = requests
            return
        del self.active[adapter]  # pinned adapters are never out
        self._take(-1)
        self._waiting.deactivate(adapter)
        if not self._holders(adapter):
            self.out.discard(adapter)

    def move(self, adapter: int, source: Lane, target: Lane, now_s: float) -> None:
        """A half-done prompt goes on in another batch. `target` is bound and has room for its adapter."""
        if not self.active.get(adapter):
            if adapter not in self._pinned:
                self._take(1)
                self._waiting.activate(adapter)
            if adapter not in self.out:
                assert self.tiers is not None
                self.tiers.use(adapter)
        self.active[adapter] = self.active.get(adapter, 0) + 1
        self.bind(source)
        self.leave(adapter, now_s)
        self.bind(target)

    def missing(self) -> list[int]:
        """Adapters of the bound lane without a slot."""
        return sorted(adapter for adapter in self.active if adapter in self.out) if self.out else []

    def restore(self, adapter: int, now_s: float) -> str:
        """Load one of them again; returns the tier it is loaded from."""
        return self._acquire(adapter, now_s)

    def _activate(self, adapter: int, now_s: float) -> str:
        if adapter not in self._pinned:
            self._take(1)
            self._waiting.activate(adapter)
        return self._acquire(adapter, now_s)

    def _acquire(self, adapter: int, now_s: float) -> str:
        tiers = self.tiers
        assert tiers is not None
        while not tiers.can_activate(adapter):
            self._take_away(now_s)
        tier, slot_victim, _ = tiers.acquire(adapter, now_s)
        if slot_victim is not None:
            self.evictions += 1
        if adapter in self.out:
            self.out.discard(adapter)
            for _ in range(self._holders(adapter) - 1):
                tiers.use(adapter)
        return tier

    def _take_away(self, now_s: float) -> None:
        """Let the slot of the batch planned longest ago go."""
        tiers = self.tiers
        assert tiers is not None
        others = {a for lane in self._lanes for a in lane.active if a not in self.active}
        held = [adapter for adapter in others - self.out if adapter not in self._pinned]
        victim = min(held, key=lambda adapter: (self._last_batch(adapter), adapter))
        for _ in range(self._holders(victim)):
            tiers.release(victim, now_s)
        self.out.add(victim)

    def _holders(self, adapter: int) -> int:
        return sum(adapter in lane.active for lane in self._lanes)

    def _last_batch(self, adapter: int) -> int:
        return max(lane.batch for lane in self._lanes if adapter in lane.active)
