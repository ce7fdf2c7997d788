"""The adapters of an SGLang replica: who may join the running batch, and what each step brings into slots."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from simlora.engines.base import NEVER_S
from simlora.engines.request import Request
from simlora.engines.sglang.overlap import OverlapLoader
from simlora.engines.sglang.slots import Places, SlotPool
from simlora.engines.sync_engine import Load
from simlora.engines.vllm.adapter_slots import TIER_CODE
from simlora.latency.step import REMOTE

FetchTime = Callable[[int], float]
"""Own rank -> seconds that a blocking load from remote storage waits for the file."""


class StepAdapters:
    """Places for running adapters, slots, and loads. Without overlapped loading, a step loads what it lacks first: it
    looks at its own adapters only, so that a prefill can take the slot of an adapter that decodes."""

    def __init__(
        self, places: Places, pool: SlotPool | None, loader: OverlapLoader | None, fetch_s: FetchTime | None
    ) -> None:
        """pool: None with LoRA off. loader: None where loads block the batch. fetch_s: None without remote storage."""
        self.places, self.pool, self.loader, self._fetch_s = places, pool, loader, fetch_s
        self.tier_counts = [0, 0, 0, 0]
        """Admissions with an adapter by where it was (TIER_CODE), and loads for requests that ran already."""
        self.loads_by_rank: dict[int, int] = {} if loader is None else loader.loads_by_rank
        self._tiers: dict[int, str] = {}
        """Adapter -> tier, of what the last step loads."""
        self.step: set[int] = set()
        """Adapters of the last step, the base model included."""

    @property
    def copying(self) -> bool:
        """Adapters are copied to the GPU beside the steps."""
        return self.loader is not None and self.loader.copying

    @property
    def next_s(self) -> float:
        """When a copy beside the steps takes its next step."""
        return NEVER_S if self.loader is None else self.loader.next_s()

    def conflicts(self, adapter: int) -> bool:
        """Every slot belongs to another running or pinned adapter."""
        return self.pool is not None and not self.places.room and not self.places.serves(adapter)

    def ready(self, request: Request, now_s: float) -> bool:
        """The request's adapter can be in the next step. Overlapped loading begins to load it if there is room."""
        if self.pool is None or request.adapter in self.places.running:
            return True
        if self.loader is not None:
            return self.loader.ready(request.adapter, request.rank, self.places, self.pool, now_s)
        return not self.conflicts(request.adapter)

    def prepare(self, adapters: Collection[int], new: Collection[Request], running: Iterable[Request]) -> list[Request]:
        """Bring the adapters of a step into slots; returns a request for each load. new: requests that begin."""
        self.step = set(adapters)
        tiers: dict[int, str] = {}
        if self.pool is not None and self.loader is None:
            tiers = {loaded.adapter: loaded.tier for loaded in self.pool.prepare(adapters, self.places.running)}
        loading, self._tiers = [], dict(tiers)
        for request in new:
            if not request.adapter:
                continue
            tier = TIER_CODE[tiers.pop(request.adapter)] if request.adapter in tiers else 0
            if tier:
                loading.append(request)
            elif self.loader is not None:
                tier = self.loader.used(request.adapter)
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
