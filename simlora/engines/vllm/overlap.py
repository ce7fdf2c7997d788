"""vLLM with adapter loads on a side stream.

Not in vLLM 0.20, where a load blocks the step; proposed in its pull requests 31941 and 41785, and what SGLang does with
--enable-lora-overlap-loading. A request whose adapter is not in a slot yet is walked past, as one that finds no slot,
and keeps its place in the order; meanwhile steps go on, slower while bytes cross the link. The slot is the copy's from
its start: the adapter that was there is gone, and nobody else gets the place.

Without prefetch a copy begins when the scheduler would admit the request. With prefetch it begins as soon as the
request stands among the first in the queue whose adapters fit the slots beside those of the running requests, even
while memory or seats keep it waiting; a slot is taken only from an adapter that none of these wants.
"""

from __future__ import annotations

from collections.abc import Iterator

from simlora.engines.active_adapters import ActiveAdapters
from simlora.engines.decode_batch import DecodeBatch
from simlora.engines.overlap_loading import OverlapLoading
from simlora.engines.request_columns import RequestColumns
from simlora.engines.vllm.adapter_slots import TIER_CODE
from simlora.engines.vllm.batch import VllmLimits
from simlora.engines.vllm.prefix_cache import PrefixCache
from simlora.engines.vllm.scheduler import Load, VllmScheduler
from simlora.engines.vllm.waiting import HeldQueue, WaitingQueue
from simlora.latency.step import StepPlan
from simlora.memory.residents import AdapterTiers, ResidentSet


class OverlappedScheduler(VllmScheduler):
    """VllmScheduler whose admissions wait for their adapters, not for the step that loads them."""

    may_hold_back = True

    def __init__(
        self,
        limits: VllmLimits,
        requests: RequestColumns,
        tiers: AdapterTiers,
        copies: OverlapLoading,
        prefetch: bool,
        decodes: DecodeBatch | None = None,
        prefix_cache: PrefixCache | None = None,
        ranks: ActiveAdapters | None = None,
    ) -> None:
        self.held = HeldQueue(requests.adapter, limits.skipped_first)
        super().__init__(limits, requests, tiers, decodes, prefix_cache, ranks)
        self.copies = copies
        self._tiers, self._prefetches, self._places = tiers, prefetch, limits.max_loras - len(limits.pinned)
        self._copying = False
        self._planned = self._asleep = False
        """The last plan had work. Asleep: it had none, and nothing is in flight."""
        self._changes = 0
        """Arrivals and completions: with `version`, all that the prefetch window depends on."""
        self._looked = -1, -1
        self._postponed: list[int] = []
        """Held in the last plan for want of a slot that could be had; the next one looks again."""
        self._request_of: dict[int, int] = {}
        """Adapter -> a request of it."""
        self._fresh: dict[int, tuple[int, float]] = {}
        """Adapter that nobody has used since it arrived -> tier that it came from, duration of the copy."""

    def _make_queue(self) -> WaitingQueue:
        return self.held

    def enqueue(self, request: int, now_s: float) -> bool:
        late = len(self.late)
        could_admit = super().enqueue(request, now_s)
        if self._asleep and len(self.late) > late:  # with no step in progress, it is looked at and passed over now
            self.held.mark_skipped_through(request)
        adapter = self.requests.adapter[request]
        self._request_of[adapter] = request  # it may be in a slot now and not when its turn comes
        there = not adapter or adapter in self._tiers.slots
        if there or not self._prefetches or self.held.is_held(adapter):
            return could_admit
        self._changes += 1
        return True

    def _conflicts(self, adapter: int) -> bool:
        return self.held.is_held(adapter) or super()._conflicts(adapter)

    def form_step(self, now_s: float) -> StepPlan | None:
        if now_s >= self.copies.due_s:
            self._arrive(now_s)
        while self._postponed:
            self.held.let_go(self._postponed.pop())
        plan = super().form_step(now_s)
        self._asleep = plan is None and not (self.asynchronous and self._planned)
        self._planned = plan is not None
        if self._prefetches and self.waiting.size and self._prefetch(now_s) and plan is not None:
            plan = plan._replace(max_repeat=1)  # the next walk may pass over one that this walk stopped at
        self.wake_s = self.copies.due_s
        copying = self.copies.copying
        if copying != self._copying:
            self._copying = copying
            self._reprice()
        return plan._replace(copying=True) if copying and plan is not None else plan

    def _reprice(self) -> None:
        """The batch stays, its price does not."""
        planned = self.planned_version == self.version
        self.version += 1
        if planned:
            self.planned_version = self.version

    def _arrive(self, now_s: float) -> None:
        for done, tier in self.copies.advance(now_s):
            adapter = done.adapter
            self._changes += 1
            self.slots.arrived(adapter, done.end_s)
            self.held.let_go(adapter)
            self._fresh[adapter] = TIER_CODE[tier], done.end_s - done.start_s

    def _holds_back(self, request: int, now_s: float) -> bool:
        adapter = self.requests.adapter[request]
        if not adapter or adapter in self._tiers.slots:
            return False
        if self._prefetches:  # after the walk, in the order of the queue
            self.held.hold(adapter)
            self._postponed.append(adapter)
        else:
            self._load(adapter, now_s)
        return True

    def _load(self, adapter: int, now_s: float) -> None:
        rank = self.requests.rank[self._request_of[adapter]]
        tier = self.slots.reserve(adapter, now_s)
        self.loads_by_rank[rank] = self.loads_by_rank.get(rank, 0) + 1
        self.copies.start(adapter, rank, tier, now_s)
        if adapter in self._postponed:
            self._postponed.remove(adapter)
        else:
            self.held.hold(adapter)

    def _start(self, request: int, loads: list[Load], now_s: float) -> None:
        super()._start(request, loads, now_s)
        requests = self.requests
        if requests.adapter[request] in self._fresh:
            code, seconds = self._fresh.pop(requests.adapter[request])
            requests.load_tier[request] = code
            requests.load_s[request] += seconds
            self.slots.tier_counts[0] -= 1
            self.slots.tier_counts[code] += 1

    # --- prefetch -----------------------------------------------------------------------------------------------

    def _prefetch(self, now_s: float) -> bool:
        """Load what the first adapters in the queue need, as far as slots can be had for them; whether a copy began."""
        state = self.version, self._changes
        if state == self._looked:
            return False
        self._looked, began = state, False
        active = [adapter for adapter in self.slots.active if adapter not in self.limits.pinned]
        window = self.held.first_adapters(self._places - len(active), {*active, *self.limits.pinned})
        for adapter in window:
            if adapter not in self._tiers.slots and self._has_room(adapter, window):
                self._load_sparing(adapter, window, now_s)
                began = True
        return began

    def _has_room(self, adapter: int, wanted: list[int]) -> bool:
        """Whether a slot, and a place in host memory, can be had without a wanted adapter leaving for it."""
        tiers = self._tiers
        if self.slots.full or not _spare(tiers.slots, wanted):
            return False
        return adapter in tiers.host or _spare(tiers.host, wanted)

    def _load_sparing(self, adapter: int, wanted: list[int], now_s: float) -> None:
        """The wanted adapters are in use while a victim is chosen."""
        idle = [(tier, other) for tier in (self._tiers.slots, self._tiers.host) for other in wanted if other in tier]
        for tier, other in idle:
            tier.use(other)
        self._load(adapter, now_s)
        for tier, other in idle:
            tier.release(other, now_s)

    def violations(self) -> Iterator[tuple[str, str]]:
        yield from super().violations()
        for adapter in self.copies:
            if adapter in self.slots.active:
                yield "INV-4", f"adapter {adapter} is in the step while it is copied"
            if self._tiers.slots.uses(adapter) != 1:
                yield "INV-4", f"the copy of adapter {adapter} does not hold its slot"


def _spare(tier: ResidentSet, wanted: list[int]) -> bool:
    """There is an empty place in the tier, or an adapter that nobody uses or wants."""
    if len(tier) < tier.capacity:
        return True
    return any(not tier.uses(other) and not tier.is_pinned(other) and other not in wanted for other in tier)
