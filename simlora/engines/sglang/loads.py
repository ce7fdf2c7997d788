"""The adapters of an SGLang replica: who may join the running batch, and what is brought into slots for it.

Source of overlapped loading, where adapters are copied on a side stream while their requests are held back:
sgl-project/sglang, lora/lora_overlap_loader.py (2026). There, a load that ends between two iterations is seen by the
later one, as here. The base model's slot is only zeroed on the GPU, which takes no time here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from simlora.engines.base import NEVER_S
from simlora.engines.overlap_loading import OverlapLoading
from simlora.engines.request import Request
from simlora.engines.sglang.slots import BASE, Places, SlotPool
from simlora.engines.sync_engine import Load
from simlora.engines.vllm.adapter_slots import TIER_CODE
from simlora.latency.step import REMOTE

FetchTime = Callable[[int], float]
"""Own rank -> seconds that a blocking load from remote storage waits for the file."""


class StepAdapters:
    """Places for running adapters, slots, and loads. Without overlapped loading, a step loads what it lacks first: it
    looks at its own adapters only, so that a prefill can take the slot of an adapter that decodes."""

    def __init__(
        self, places: Places, pool: SlotPool | None, copies: OverlapLoading | None, fetch_s: FetchTime | None
    ) -> None:
        """pool: None with LoRA off. copies: None where loads block the batch. fetch_s: None without remote storage."""
        self.places, self.pool, self.copies, self._fetch_s = places, pool, copies, fetch_s
        self.tier_counts = [0, 0, 0, 0]
        """Admissions with an adapter by where it was (TIER_CODE), and loads for requests that ran already."""
        self.loads_by_rank: dict[int, int] = {}
        """Own rank -> loads begun."""
        self._fresh: dict[int, int] = {}
        """Adapter -> tier that it is or was copied from; until a request starts with it."""
        self._tiers: dict[int, str] = {}
        """Adapter -> tier, of what the last step loads."""
        self.step: set[int] = set()
        """Adapters of the last step, the base model included."""

    @property
    def copying(self) -> bool:
        """Adapters are copied to the GPU beside the steps."""
        return self.copies is not None and self.copies.copying

    @property
    def next_s(self) -> float:
        """When a copy beside the steps takes its next step."""
        return NEVER_S if self.copies is None else self.copies.due_s

    def conflicts(self, adapter: int) -> bool:
        """Every slot belongs to another running or pinned adapter."""
        return self.pool is not None and not self.places.room and not self.places.serves(adapter)

    def ready(self, request: Request, now_s: float) -> bool:
        """The request's adapter can be in the next step. Overlapped loading begins to load it if there is room."""
        if self.pool is None or request.adapter in self.places.running:
            return True
        if self.copies is None:
            return not self.conflicts(request.adapter)
        return self._ready_beside(request.adapter, request.rank, self.pool, self.copies, now_s)

    def finish(self, now_s: float) -> None:
        """Copies beside the steps that are complete by now_s."""
        if self.copies is not None:
            self.copies.advance(now_s)

    def _ready_beside(self, adapter: int, rank: int, pool: SlotPool, copies: OverlapLoading, now_s: float) -> bool:
        """Whether a request of an adapter with no running request may start; begins to load it if there is room."""
        if adapter in copies:
            return False
        if adapter in pool:
            return True
        if not self.places.allows(adapter, list(copies)):
            return False
        held = {*copies, *self.places.running}
        for loaded in pool.prepare(held | {adapter}, held):
            self._fresh[adapter] = TIER_CODE[loaded.tier]
            self.loads_by_rank[rank] = self.loads_by_rank.get(rank, 0) + 1
            copies.start(adapter, rank, loaded.tier, now_s)
            copies.advance(now_s)
        return adapter == BASE or adapter not in copies

    def prepare(self, adapters: Collection[int], new: Collection[Request], running: Iterable[Request]) -> list[Request]:
        """Bring the adapters of a step into slots; returns a request for each load. new: requests that begin."""
        self.step = set(adapters)
        tiers: dict[int, str] = {}
        if self.pool is not None and self.copies is None:
            tiers = {loaded.adapter: loaded.tier for loaded in self.pool.prepare(adapters, self.places.running)}
        loading, self._tiers = [], dict(tiers)
        for request in new:
            if not request.adapter:
                continue
            tier = TIER_CODE[tiers.pop(request.adapter)] if request.adapter in tiers else 0
            if tier:
                loading.append(request)
            elif self.copies is not None:
                tier = self._fresh.pop(request.adapter, 0)
            self.tier_counts[tier] += 1
            request.load_tier = tier or request.load_tier
        if tiers:  # adapters of running requests whose slots were taken meanwhile
            loading += self._again(tiers, running)
        for request in loading:
            self.loads_by_rank[request.rank] = self.loads_by_rank.get(request.rank, 0) + 1
        return loading

    def loads(self, loading: Iterable[Request]) -> tuple[Load, ...]:
        """What the last prepare loads, for the plan."""
        return tuple((request.adapter, request.rank, self._tiers[request.adapter]) for request in loading)

    def fetching_s(self, loading: Iterable[Request]) -> float:
        """Seconds that the step waits for remote storage."""
        if self._fetch_s is None:
            return 0.0
        return sum(self._fetch_s(request.rank) for request in loading if self._tiers[request.adapter] == REMOTE)

    def _again(self, tiers: dict[int, str], running: Iterable[Request]) -> list[Request]:
        first: dict[int, Request] = {}
        for request in running:
            if request.adapter in tiers:
                first.setdefault(request.adapter, request)
        for tier in tiers.values():
            self.tier_counts[TIER_CODE[tier]] += 1
        return [first[adapter] for adapter in tiers]
