"""The adapters of one S-LoRA replica on the GPU: units of the unified pool, a cache of idle ones, copies on their way.

Sources: section 4 of arXiv:2311.03285; slora/server/router/model_infer/infer_adapter.py (c1ddf48). Whoever takes units
makes room first, by letting idle adapters go (least recently used first), then by giving up copies that were begun
ahead of an admission. The worst-case test leaves enough for requests that were admitted, so that this suffices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from simlora.engines.base import NEVER_S
from simlora.engines.overlap_loading import OverlapLoading
from simlora.engines.request import Request
from simlora.engines.slora.admission import AdapterUnits, SloraLimits
from simlora.latency.step import HOST
from simlora.memory.pools import ADAPTER, KV, Pool
from simlora.memory.residents import Lru

_ARRIVED = -1


class SloraPool:
    """KV units by count, adapters one by one. Ask for units of adapters with `acquire` and `prefetch`."""

    def __init__(self, limits: SloraLimits, units: AdapterUnits, copies: OverlapLoading | None = None) -> None:
        """copies: with overlapped loading."""
        self._units, self._copies = units, copies
        self._cached = limits.cached
        self.kv = Pool(limits.total_units if limits.unified else limits.kv_units)
        self.area = self.kv if limits.unified else Pool(limits.adapter_units)
        """Where adapters are."""
        self._held: dict[int, int] = {}
        """Adapter -> units, in the pool or on its way there."""
        self._uses: dict[int, int] = {}
        """Adapter -> requests that run, or were accepted and wait for it."""
        self._idle, self._idle_units = Lru(), 0
        self._ahead: dict[int, int] = {}
        """Copies that nobody was promised, oldest first -> units."""
        self._tagged: frozenset[int] = frozenset()
        """Adapters of the last look ahead."""
        self.evictions = 0
        self.loads_by_rank: dict[int, int] = {}

    def __contains__(self, adapter: int) -> bool:
        """In the pool, or on its way there."""
        return adapter in self._held

    def __iter__(self) -> Iterator[int]:
        return iter(self._held)

    def units_of(self, adapter: int) -> int:
        """Units of an adapter that is there."""
        return self._held[adapter]

    def ready(self, adapter: int) -> bool:
        """The adapter can compute; the base model always can."""
        return not adapter or (adapter in self._held and not self._in_flight(adapter))

    @property
    def copying(self) -> bool:
        """Bytes cross the host link now."""
        return self._copies is not None and self._copies.copying

    @property
    def due_s(self) -> float:
        """When something about the copies changes next."""
        return NEVER_S if self._copies is None else self._copies.due_s

    # --- adapters -----------------------------------------------------------------------------------------------

    def acquire(self, request: Request, now_s: float) -> bool:
        """Hold the request's adapter. True: it has to be brought for it; without overlapped loading by the caller."""
        adapter = request.adapter
        if not adapter:
            return False
        self._uses[adapter] = self._uses.get(adapter, 0) + 1
        if adapter in self._held:
            if self._uses[adapter] == 1 and self._ahead.pop(adapter, _ARRIVED) is _ARRIVED:
                self._leave_idle(adapter)
            return False
        if not self._take(adapter, request.rank, now_s):
            raise RuntimeError(f"no room for adapter {adapter}, which the admission test promised")
        return True

    def release(self, adapter: int, now_s: float) -> None:
        """Let go of it once. The last one leaves it idle."""
        if not adapter:
            return
        left = self._uses[adapter] - 1
        if left:
            self._uses[adapter] = left
            return
        del self._uses[adapter]
        self._become_idle(adapter, now_s)

    def drop_unused(self, all_of_them: bool) -> None:
        """A request ended: the published code frees the adapters that no request uses and the last look ahead did not
        name, and with an empty batch all of them. A cache keeps them."""
        if self._cached:
            return
        for adapter in self.idle():
            if all_of_them or adapter not in self._tagged:
                self._evict(adapter)

    def prefetch(self, requests: Iterable[Request], now_s: float, need: int) -> None:
        """Look ahead: begin to copy the adapters of these requests, in order, until there is no room for one more.

        Room is what is free, and with a cache what idle adapters hold that none of the requests wants. need: units of
        keys and values at the fullest moment to come; a cache leaves them alone, the published code does not look.
        """
        wanted: dict[int, int] = {request.adapter: request.rank for request in requests if request.adapter}
        self._tagged = frozenset(wanted)
        spare = self.area.total - sum(map(self._held.__getitem__, self._uses)) - (need if self.area is self.kv else 0)
        room = self.area.free_units + (self._idle_units if self._cached else 0)
        for adapter in wanted:
            if adapter in self._held and adapter not in self._uses and adapter not in self._ahead:
                self._idle.record_use(adapter, now_s)
                room -= self._held[adapter] if self._cached else 0
        for adapter, rank in wanted.items():
            units = self._units(rank)
            if adapter in self._uses:
                continue
            spare -= units if self._cached else 0
            room -= 0 if adapter in self._held else units
            if spare < 0 or room < 0:
                return
            if adapter not in self._held:
                self._take(adapter, rank, now_s)
                self._ahead[adapter] = units

    def advance(self, now_s: float) -> None:
        """Account for the copies that are over."""
        if self._copies is not None:
            for done, _ in self._copies.advance(now_s):
                if self._ahead.pop(done.adapter, _ARRIVED) is not _ARRIVED:
                    self._become_idle(done.adapter, done.end_s)

    # --- room ---------------------------------------------------------------------------------------------------

    def take_kv(self, units: int, now_s: float | None = None) -> None:
        """Units for keys and values, which the admission test promised. Without a time no copy is given up."""
        if self.area is self.kv:
            self._make_room(units, now_s)
        if not self.kv.allocate(units, KV):
            raise RuntimeError(f"no room for {units} units of KV cache: {self.kv.free_units} are free")

    def free_kv(self, units: int) -> None:
        """Give units back."""
        self.kv.free(units, KV)

    @property
    def used_kv(self) -> int:
        """Units of keys and values."""
        return self.kv.used(KV)

    def kv_room(self) -> int | None:
        """Units of keys and values that can be had before a copy has to be given up; None: no copy ever is."""
        if not self._ahead or self.area is not self.kv:
            return None
        return self.kv.free_units + self._idle_units

    def idle(self) -> list[int]:
        """Adapters in the pool that nobody uses."""
        return [adapter for adapter in self._held if adapter not in self._uses and adapter not in self._ahead]

    def uses(self) -> dict[int, int]:
        """Adapter -> requests that hold it."""
        return dict(self._uses)

    def check(self) -> str | None:
        """What is wrong, if anything."""
        for pool in (self.kv, self.area):
            pool.check()
        if sum(self._held.values()) != self.area.used(ADAPTER):
            return f"adapters hold {sum(self._held.values())} units, the pool counts {self.area.used(ADAPTER)}"
        units = sum(self._held[adapter] for adapter in self.idle())
        if (len(self._idle), self._idle_units) != (len(self.idle()), units):
            return f"{len(self._idle)} adapters of {self._idle_units} units may leave, {units} units are idle"
        lost = [adapter for adapter in self._uses if adapter not in self._held]
        return f"adapters {lost} are in use, but not in the pool" if lost else None

    def _take(self, adapter: int, rank: int, now_s: float) -> bool:
        units = self._units(rank)
        self._make_room(units, now_s)
        if not self.area.allocate(units, ADAPTER):
            return False
        self._held[adapter] = units
        self.loads_by_rank[rank] = self.loads_by_rank.get(rank, 0) + 1
        if self._copies is not None:
            self._copies.start(adapter, rank, HOST, now_s)
        return True

    def _make_room(self, units: int, now_s: float | None) -> None:
        while self.area.free_units < units and (victim := self._idle.victim()) is not None:
            self._evict(victim)
        while now_s is not None and self.area.free_units < units and self._ahead:
            self._give_up(self._ahead.popitem()[0], now_s)

    def _become_idle(self, adapter: int, now_s: float) -> None:
        self._idle.insert(adapter, now_s)
        self._idle_units += self._held[adapter]

    def _leave_idle(self, adapter: int) -> None:
        self._idle.discard(adapter)
        self._idle_units -= self._held[adapter]

    def _evict(self, adapter: int) -> None:
        self._leave_idle(adapter)
        self.area.free(self._held.pop(adapter), ADAPTER)
        self.evictions += 1

    def _give_up(self, adapter: int, now_s: float) -> None:
        if self._copies is not None:
            self._copies.cancel(adapter, now_s)
        self.area.free(self._held.pop(adapter), ADAPTER)

    def _in_flight(self, adapter: int) -> bool:
        return self._copies is not None and adapter in self._copies
