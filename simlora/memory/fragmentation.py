"""What paging saves over contiguous pieces in S-LoRA's pool: adapters and requests come and go, in both allocators."""

from __future__ import annotations

import random
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from simlora.memory.engine_ledger import EngineLedger
from simlora.memory.paging import ContiguousPool, PagedPool
from simlora.memory.slora import PoolGeometry, pool_geometry

if TYPE_CHECKING:
    from simlora.scenario.root import Scenario

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
    """The study for a scenario of kind slora; None for other engines, without adapters or without a pool."""
    if scenario.engine.kind != "slora" or not scenario.adapters.count or ledger.kv_units < 1:
        return None
    pool, rng = pool_geometry(scenario), random.Random(scenario.seed)
    counts = scenario.adapters.rank_counts()
    ranks = rng.choices(list(counts), weights=list(counts.values()), k=ARRIVALS)
    most = min(REQUEST_TOKENS[1], scenario.engine.max_model_len)
    lengths = [rng.randint(min(REQUEST_TOKENS[0], most), most) for _ in range(ARRIVALS)]
    pieces = [(rank, 0) if rng.random() < 0.5 else (0, tokens) for rank, tokens in zip(ranks, lengths, strict=True)]
    return _play(pool, ledger.kv_units * pool.unit_bytes, pieces)


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
