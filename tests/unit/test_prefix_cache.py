"""The prefix cache: what is found, what is shared, and that no block is lost or counted twice."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[1]))

from support.cases import examples
from support.stepping import append

from simlora.engines.request import Request
from simlora.engines.request_columns import RequestColumns
from simlora.engines.vllm.kv_blocks import KvBlocks
from simlora.engines.vllm.prefix_cache import PrefixCache

GRANULE, BLOCK = 8, 4


class Pool:
    """Admits and ends requests the way the engine does, one prompt at a time."""

    def __init__(self, blocks: int) -> None:
        self.prefixes: list[Any] = []
        self.requests = RequestColumns([], [], [], [], [], self.prefixes)
        self.cache = PrefixCache(GRANULE, BLOCK, self.requests)
        self.kv = KvBlocks(blocks, BLOCK, self.cache)
        self.running: list[int] = []

    def arrive(self, prompt: int, prefix: tuple[int, ...] | None, adapter: int = 0) -> int:
        self.prefixes.append(prefix)
        return append(self.requests, Request(0, 0.0, adapter, 8 if adapter else 0, prompt, 1))

    def blocks(self, request: int) -> int:
        return -(-self.requests.prompt_tokens[request] // BLOCK)

    def admit(self, request: int) -> int | None:
        """Cached tokens, or None if there is no room."""
        cached, fresh = self.cache.lookup(request)
        if self.blocks(request) - cached // BLOCK + fresh > self.kv.free:
            return None
        self.start(request, cached)
        self.cache.insert(request)
        return cached

    def start(self, request: int, cached: int) -> None:
        self.kv.free -= self.cache.acquire(request, cached)
        self.kv.take(self.blocks(request) - cached // BLOCK)
        self.running.append(request)

    def end(self, request: int) -> None:
        self.running.remove(request)
        self.kv.give_back(request, self.blocks(request))

    def check(self) -> None:
        own = sum(self.blocks(request) - self.cache.shared_blocks(request) for request in self.running)
        assert self.kv.free + own + self.cache.used_blocks() == self.kv.total
        assert 0 <= self.cache.idle_blocks <= self.kv.free


def test_nothing_is_cached_at_first_and_everything_but_the_last_token_later() -> None:
    pool = Pool(100)
    assert pool.admit(pool.arrive(24, (1, 2, 3))) == 0
    assert pool.admit(pool.arrive(24, (1, 2, 3))) == 16, "the last granule is computed again, for the first token"
    assert pool.admit(pool.arrive(25, (1, 2, 3, 4))) == 24
    assert pool.admit(pool.arrive(30, (1, 12, 13))) == 8
    assert pool.admit(pool.arrive(30, (7, 17, 27))) == 0
    pool.check()


def test_adapters_share_nothing() -> None:
    pool = Pool(100)
    pool.admit(pool.arrive(24, (1, 2, 3), adapter=1))
    assert pool.admit(pool.arrive(24, (1, 2, 3), adapter=2)) == 0
    assert pool.admit(pool.arrive(24, (1, 2, 3))) == 0
    assert pool.admit(pool.arrive(24, (1, 2, 3), adapter=1)) == 16


def test_without_hash_ids_or_after_a_preemption_nothing_is_looked_up() -> None:
    pool = Pool(100)
    pool.admit(pool.arrive(24, (1, 2, 3)))
    assert pool.admit(pool.arrive(24, None)) == 0
    again = pool.arrive(24, (1, 2, 3))
    pool.requests.emitted[again] = 1
    assert pool.admit(again) == 0
    pool.check()


def test_idle_granules_count_as_free_and_come_back() -> None:
    pool = Pool(10)
    first = pool.arrive(32, (1, 2, 3, 4))
    pool.admit(first)
    assert pool.kv.free == 2
    pool.end(first)
    assert (pool.kv.free, pool.cache.idle_blocks) == (10, 8)
    assert pool.admit(pool.arrive(20, (1, 2, 7))) == 16
    assert (pool.kv.free, pool.cache.idle_blocks) == (5, 4)
    pool.check()


def test_the_least_recently_freed_granule_goes_first_and_deeper_before_shallower() -> None:
    pool = Pool(10)
    one, two = pool.arrive(16, (1, 2)), pool.arrive(16, (5, 6))
    pool.admit(one)
    pool.admit(two)
    pool.end(one)
    pool.end(two)
    pool.kv.take(6)  # leaves 4 blocks for 8 cached ones
    assert pool.cache.idle_blocks == 4
    assert pool.cache.lookup(pool.arrive(24, (5, 6))) == (16, 4)
    assert pool.cache.lookup(pool.arrive(24, (1, 2))) == (0, 0)
    pool.kv.take(1)
    assert pool.cache.lookup(pool.arrive(24, (5, 6))) == (8, 2)


def test_a_piece_that_two_compute_at_once_is_cached_once() -> None:
    pool = Pool(100)
    kv, cache = pool.kv, pool.cache
    one, two = pool.arrive(16, (1, 2)), pool.arrive(16, (1, 2))
    pool.start(one, 0)
    pool.start(two, 0)
    cache.insert(one)
    cache.insert(two)
    assert (cache.shared_blocks(one), cache.shared_blocks(two)) == (4, 0)
    assert kv.free + 4 + cache.used_blocks() == 100
    kv.give_back(two, 4)
    assert (kv.free, cache.idle_blocks) == (96, 0)
    kv.give_back(one, 4)
    assert (kv.free, cache.idle_blocks) == (100, 4)


def test_a_granule_holds_whole_blocks() -> None:
    with pytest.raises(ValueError, match="not a whole number"):
        PrefixCache(20, 16, RequestColumns([], [], [], [], []))


def path(group: int, depth: int) -> tuple[int, ...]:
    """Hash ids of a prompt: equal ids mean equal text from the beginning on."""
    return tuple((1 if d < 2 else 1 + group) * 100 + d for d in range(depth))


@examples(200)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 50), st.integers(0, 1), st.booleans(), st.integers(0, 20)),
        max_size=30,
    ),
    st.integers(13, 40),
)
def test_blocks_are_conserved(events: list[tuple[int, int, int, bool, int]], blocks: int) -> None:
    """Admissions and ends in any order; what is found is what a plain dictionary of prefixes would find."""
    pool = Pool(blocks)
    for group, prompt, adapter, end, which in events:
        if end and pool.running:
            pool.end(pool.running[which % len(pool.running)])
        else:
            prefix = path(group, -(-prompt // GRANULE))
            held = {granule for request in pool.running for granule in pool.cache._held[request]}
            cached = pool.admit(pool.arrive(prompt, prefix, adapter))
            if cached is not None:
                assert cached % GRANULE == 0 and cached < prompt
                sure = 0  # granules that running requests share are certainly found
                while sure < (prompt - 1) // GRANULE and (adapter, prefix[sure]) in held:
                    sure += 1
                assert cached >= sure * GRANULE
        pool.check()
    for left in list(pool.running):
        pool.end(left)
    assert pool.kv.free == blocks
    assert pool.cache.used_blocks() == 0
    pool.kv.take(blocks)
    assert pool.cache.idle_blocks == 0
