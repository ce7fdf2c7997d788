"""What paging saves over contiguous pieces in S-LoRA's pool: adapters and requests come and go, in both allocators.

Contiguous allocation needs one gap per piece, so free memory can be useless (external fragmentation). Paging takes any
free pages and a page table, and loses the rest of each piece's last page (internal fragmentation).
"""

from __future__ import annotations

import random
from bisect import insort
from collections import deque
from collections.abc import Hashable, Iterable
from typing import NamedTuple

from simlora.engines.slora.memory import PoolGeometry, pool_geometry
from simlora.memory.ledger import EngineLedger
from simlora.scenario.engines.slora import SloraConfig
from simlora.scenario.root import Scenario


class Fragmentation(NamedTuple):
    """State of a pool, in bytes."""

    total_bytes: int
    held_bytes: int
    """What the owners asked for."""
    allocated_bytes: int
    """What they got."""
    free_bytes: int
    largest_free_bytes: int
    """Largest piece that could be allocated now."""
    refused: int
    """Allocations refused so far."""
    refused_by_fragmentation: int
    """Of those, how many asked for no more than was free."""

    @property
    def external_fraction(self) -> float:
        """Share of the free bytes that the largest possible piece cannot have."""
        return 1 - self.largest_free_bytes / self.free_bytes if self.free_bytes else 0.0


class PagedPool:
    """Pages of equal size; a piece takes whole pages, wherever they are. A key owns the pieces of all its
    allocations."""

    def __init__(self, total_bytes: int, page_bytes: int) -> None:
        """What does not fill a page is not used. Raises ValueError unless a page fits."""
        if not 0 < page_bytes <= total_bytes:
            raise ValueError(f"pages of {page_bytes} bytes in {total_bytes}")
        self.page_bytes = page_bytes
        self.pages = total_bytes // page_bytes
        self.free_pages = self.pages
        self._held: dict[Hashable, tuple[int, int]] = {}
        """Key -> (pages, bytes asked for)."""
        self._refused = self._refused_fragmented = 0

    def allocate(self, key: Hashable, sizes_bytes: Iterable[int]) -> bool:
        """All pieces or none. Raises ValueError for a size below 1."""
        sizes = _checked(sizes_bytes)
        pages = sum(-(-size // self.page_bytes) for size in sizes)
        if pages > self.free_pages:
            self._refused += 1
            self._refused_fragmented += sum(sizes) <= self.free_pages * self.page_bytes
            return False
        self.free_pages -= pages
        had, held = self._held.get(key, (0, 0))
        self._held[key] = had + pages, held + sum(sizes)
        return True

    def free(self, key: Hashable) -> None:
        """Give back all pieces of a key. Raises KeyError if it has none."""
        self.free_pages += self._held.pop(key)[0]

    def report(self) -> Fragmentation:
        free = self.free_pages * self.page_bytes
        total, held = self.pages * self.page_bytes, sum(size for _, size in self._held.values())
        return Fragmentation(total, held, total - free, free, free, self._refused, self._refused_fragmented)


class ContiguousPool:
    """One address range; each piece takes the first gap that is long enough, and gaps merge when pieces leave."""

    def __init__(self, total_bytes: int) -> None:
        """Raises ValueError for a size below 1."""
        if total_bytes < 1:
            raise ValueError(f"a pool of {total_bytes} bytes")
        self.total_bytes = total_bytes
        self._gaps: list[tuple[int, int]] = [(0, total_bytes)]
        """(start, end), in address order, never touching."""
        self._held: dict[Hashable, list[tuple[int, int]]] = {}
        self._refused = self._refused_fragmented = 0

    def allocate(self, key: Hashable, sizes_bytes: Iterable[int]) -> bool:
        """All pieces or none. Raises ValueError for a size below 1."""
        sizes = _checked(sizes_bytes)
        placed: list[tuple[int, int]] = []
        for size in sizes:
            start = self._first_fit(size)
            if start is None:
                for piece in placed:
                    self._give_back(piece)
                self._refused += 1
                self._refused_fragmented += sum(sizes) <= self.report().free_bytes
                return False
            placed.append((start, start + size))
        self._held.setdefault(key, []).extend(placed)
        return True

    def free(self, key: Hashable) -> None:
        """Give back all pieces of a key. Raises KeyError if it has none."""
        for piece in self._held.pop(key):
            self._give_back(piece)

    def report(self) -> Fragmentation:
        lengths = [end - start for start, end in self._gaps]
        free = sum(lengths)
        used = self.total_bytes - free
        largest = max(lengths, default=0)
        return Fragmentation(self.total_bytes, used, used, free, largest, self._refused, self._refused_fragmented)

    def _first_fit(self, size: int) -> int | None:
        for index, (start, end) in enumerate(self._gaps):
            if end - start >= size:
                self._gaps[index : index + 1] = [(start + size, end)] if end - start > size else []
                return start
        return None

    def _give_back(self, piece: tuple[int, int]) -> None:
        insort(self._gaps, piece)
        index = self._gaps.index(piece)
        low, high = max(index - 1, 0), min(index + 2, len(self._gaps))
        merged: list[tuple[int, int]] = []
        for start, end in self._gaps[low:high]:
            if merged and merged[-1][1] == start:
                merged[-1] = (merged[-1][0], end)
            else:
                merged.append((start, end))
        self._gaps[low:high] = merged


def _checked(sizes_bytes: Iterable[int]) -> list[int]:
    sizes = list(sizes_bytes)
    if any(size < 1 for size in sizes):
        raise ValueError(f"pieces of {sizes} bytes")
    return sizes


ARRIVALS = 3000
"""Pieces that come in the study; the oldest leave where there is no room."""
REQUEST_TOKENS = (64, 1024)
"""Lengths of requests, uniform, at most what the model takes."""


class PoolStudy(NamedTuple):
    """How the two allocators fare with the same pieces."""

    paged_lost: float
    """Share of the pages in use that nobody asked for (internal)."""
    contiguous_lost: float
    """Share of the free memory outside the largest gap (external), averaged over the arrivals."""
    contiguous_evictions: float
    """Pieces per arrival that had to leave though as much memory was free as was asked for."""


def study(scenario: Scenario, ledger: EngineLedger) -> PoolStudy | None:
    """The study for a scenario's pool; None without adapters or without a pool."""
    if not scenario.adapters.count or ledger.kv_units < 1:
        return None
    pool, rng = pool_geometry(scenario), random.Random(scenario.seed)
    counts = scenario.adapters.rank_counts()
    ranks = rng.choices(list(counts), weights=list(counts.values()), k=ARRIVALS)
    most = min(REQUEST_TOKENS[1], scenario.engine.max_model_len)
    lengths = [rng.randint(min(REQUEST_TOKENS[0], most), most) for _ in range(ARRIVALS)]
    pieces = [(rank, 0) if rng.random() < 0.5 else (0, tokens) for rank, tokens in zip(ranks, lengths, strict=True)]
    return _play(pool, ledger.kv_units * pool.unit_bytes, pieces)


def pool_advice(scenario: Scenario, ledger: EngineLedger) -> tuple[str, ...]:
    """What the pool's unit of allocation loses, in a sentence."""
    engine = scenario.engine
    assert isinstance(engine, SloraConfig)
    found = study(scenario, ledger)
    if found is None:
        return ()
    unit = "rows" if engine.page == "row" else f"{engine.page} pages"
    return (
        f"fragmentation: {unit} lose {found.paged_lost:.1%} to rounding; contiguous pieces would scatter "
        f"{found.contiguous_lost:.0%} of the free memory over smaller gaps and evict {found.contiguous_evictions:.2f} "
        f"pieces per arrival though enough was free ({ARRIVALS:,} adapters and requests in turn, a full pool)",
    )


def _play(pool: PoolGeometry, total_bytes: int, pieces: list[tuple[int, int]]) -> PoolStudy:
    paged, contiguous = PagedPool(total_bytes, pool.unit_bytes), ContiguousPool(total_bytes)
    held: tuple[deque[int], deque[int]] = (deque(), deque())
    sizes = [(_bytes(pool, piece), _units(pool, piece) * pool.unit_bytes) for piece in pieces]
    asked, taken, scattered, evictions = 0, 0, 0.0, 0
    for key, (whole, pages) in enumerate(sizes):
        if pages > total_bytes:
            continue
        while not paged.allocate(key, [pages]):
            paged.free(held[0].popleft())
        held[0].append(key)
        while not contiguous.allocate(key, [whole]):
            evictions += contiguous.report().free_bytes >= whole
            contiguous.free(held[1].popleft())
        held[1].append(key)
        scattered += contiguous.report().external_fraction
        asked, taken = asked + whole, taken + pages
    lost = 1.0 - asked / taken if taken else 0.0
    return PoolStudy(lost, scattered / len(sizes), evictions / len(sizes))


def _bytes(pool: PoolGeometry, piece: tuple[int, int]) -> int:
    """What a piece holds: an adapter of a rank, or the keys and values of a request."""
    rank, tokens = piece
    return pool.adapter_bytes(rank) if rank else tokens * _token_bytes(pool)


def _units(pool: PoolGeometry, piece: tuple[int, int]) -> int:
    rank, tokens = piece
    return pool.adapter_units(rank) if rank else pool.kv_units(tokens)


def _token_bytes(pool: PoolGeometry) -> int:
    return (pool.unit_bytes - pool.token_waste_bytes) // pool.unit_tokens
