"""SGLang's adapter slots: which adapters may run together, and which of them are in GPU and host memory.

The base model takes a slot like an adapter; its id is 0. Source: sgl-project/sglang, lora/lora_manager.py
`validate_lora_batch` and lora/mem_pool.py `prepare_lora_batch` (2026).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from simlora.latency.step import DISK, HOST, REMOTE

BASE = 0


def any_order(adapter: int) -> int:
    """Sort key for the adapters of one step: the code walks a set of strings, which is no order at all. Popular
    adapters, whose ids may be low, are spread evenly (multiplicative hash, Knuth, TAOCP vol. 3, 6.4)."""
    return adapter * 2654435761 & 0xFFFFFFFF


class Places:
    """Distinct adapters of the running requests. Pinned ones keep their slots, so the others share the rest."""

    __slots__ = ("_left", "_pinned", "running")

    def __init__(self, slots: int, pinned: frozenset[int]) -> None:
        self._pinned = pinned
        self._left = slots - len(pinned)
        self.running: dict[int, int] = {}
        """Adapter -> its running requests."""

    @property
    def room(self) -> bool:
        """One more adapter may join."""
        return self._left > 0

    def serves(self, adapter: int) -> bool:
        """A request of this adapter takes no further slot."""
        return adapter in self.running or adapter in self._pinned

    def allows(self, adapter: int, others: Collection[int]) -> bool:
        """The adapter fits beside the running ones and these (which may be among them)."""
        more = {*others, adapter} - self._pinned - self.running.keys()
        return len(more) <= self._left

    def served(self) -> Iterator[int]:
        """Adapters whose requests need no further slot."""
        yield from self.running
        yield from self._pinned - self.running.keys()

    def join(self, adapter: int) -> None:
        count = self.running.get(adapter, 0)
        self.running[adapter] = count + 1
        if not count and adapter not in self._pinned:
            self._left -= 1

    def leave(self, adapter: int) -> None:
        count = self.running[adapter] - 1
        if count:
            self.running[adapter] = count
            return
        del self.running[adapter]
        if adapter not in self._pinned:
            self._left += 1


class Loaded(NamedTuple):
    """An adapter that came into a slot."""

    adapter: int
    tier: str
    """Where it was."""


class SlotPool:
    """Adapters in slots and in host memory. A slot's adapter can leave whenever the step at hand does not need it."""

    def __init__(
        self,
        slots: int,
        pinned: frozenset[int] = frozenset(),
        policy: str = "lru",
        host: int | None = None,
        remote: bool = False,
    ) -> None:
        """policy: lru or fifo. host: most adapters in host memory; None: all are there from the start. remote: first
        uses come from remote storage."""
        self.slots, self.evictions = slots, 0
        self._pinned, self._lru = pinned, policy == "lru"
        self._order: OrderedDict[int, None] = OrderedDict({BASE: None})
        self._capacity = host
        self._host: OrderedDict[int, None] = OrderedDict()
        self._on_disk: set[int] | None = set() if remote else None
        self.preload(sorted(pinned), sorted(pinned))

    def __contains__(self, adapter: int) -> bool:
        return adapter in self._order

    def __iter__(self) -> Iterator[int]:
        """Residents, the next to leave first."""
        return iter(self._order)

    def preload(self, host: Iterable[int], gpu: Iterable[int]) -> None:
        """What is resident at the start, oldest first."""
        in_slots = list(gpu)
        for adapter in [*host, *in_slots]:
            self._host[adapter] = None
            if self._on_disk is not None:
                self._on_disk.add(adapter)
        self._order.update(dict.fromkeys(in_slots))

    def asked(self, adapter: int) -> None:
        """A request for the adapter came: host memory forgets what was asked for longest ago."""
        if adapter in self._host:
            self._host.move_to_end(adapter)

    def prepare(self, adapters: Collection[int], busy: Collection[int]) -> list[Loaded]:
        """Bring the adapters of a step into slots; returns those that were in none, the base model left out.

        busy: adapters that stay in host memory, because requests run with them.
        """
        ordered = sorted(adapters, key=any_order)
        missing = [adapter for adapter in ordered if adapter not in self._order]
        loaded = []
        for adapter in missing:
            tier = self._find(adapter, adapters, busy) if adapter else HOST
            if len(self._order) >= self.slots:
                self._evict(adapters)
            self._order[adapter] = None
            if adapter:
                loaded.append(Loaded(adapter, tier))
        if self._lru:
            for adapter in ordered:
                self._order.move_to_end(adapter)
        return loaded

    def _evict(self, needed: Collection[int]) -> None:
        """The first that is neither needed nor pinned; the base model only if there is no other."""
        victim = BASE
        for adapter in self._order:
            if adapter and adapter not in needed and adapter not in self._pinned:
                victim = adapter
                self.evictions += 1
                break
        del self._order[victim]

    def _find(self, adapter: int, needed: Collection[int], busy: Collection[int]) -> str:
        """The tier of an adapter that is in no slot; it is in host memory from then on."""
        if self._capacity is None:
            return HOST
        if adapter in self._host:
            return HOST
        tier = DISK if self._on_disk is None or adapter in self._on_disk else REMOTE
        if self._on_disk is not None:
            self._on_disk.add(adapter)
        if len(self._host) >= self._capacity:
            self._unload(needed, busy)
        self._host[adapter] = None
        return tier

    def _unload(self, needed: Collection[int], busy: Collection[int]) -> None:
        for adapter in self._host:
            if adapter not in needed and adapter not in busy and adapter not in self._pinned:
                del self._host[adapter]
                if adapter in self._order:  # what is unloaded is not known by its slot any more
                    del self._order[adapter]
                    self.evictions += 1
                return

    def check(self) -> Iterator[str]:
        """What is wrong."""
        if len(self._order) > self.slots:
            yield f"{len(self._order)} resident in {self.slots} slots"
        if self._capacity is not None:
            if len(self._host) > self._capacity:
                yield f"{len(self._host)} adapters in host memory for {self._capacity}"
            if missing := self._order.keys() - self._host.keys() - {BASE}:
                yield f"adapters {sorted(missing)} in slots but not in host memory"
        if lost := self._pinned - self._order.keys():
            yield f"pinned adapters {sorted(lost)} in no slot"
