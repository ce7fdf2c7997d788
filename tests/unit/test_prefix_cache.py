"""The prefix cache: what is found, what is shared, and that no block is lost or counted twice."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[1]))

from support.cases import examples

from simlora.engines.request import Request
from simlora.engines.vllm.kv_blocks import KvBlocks
from simlora.engines.vllm.prefix_cache import PrefixCache

GRANULE, BLOCK = 8, 4


def request(index: int, prompt: int, prefix: tuple[int, ...] | None, adapter: int = 0) -> Request:
    return Request(index, 0.0, adapter, 8 if adapter else 0, prompt, 1, prefix)


class Pool:
    """Admits and ends requests the way the engine does, one prompt at a time."""

    def __init__(self, blocks: int) -> None:
        self.cache = PrefixCache(GRANULE, BLOCK)
        self.kv = KvBlocks(blocks, BLOCK, self.cache)
        self.running: list[Request] = []

    def admit(self, request: Request) -> int | None:
        """Cached tokens, or None if there is no room."""
        cached, fresh = self.kv.cached(request)
        if -(-request.prompt_tokens // BLOCK) - cached // BLOCK + fresh > self.kv.free:
            return None
        self.kv.admit(request, cached, request.prompt_tokens)
        self.kv.prompt_done(request)
        self.running.append(request)
        return cached

    def end(self, request: Request) -> None:
        self.running.remove(request)
        self.kv.give_back(request, -(-request.prompt_tokens // BLOCK))

    def check(self) -> None:
        own = sum(-(-r.prompt_tokens // BLOCK) - r.shared_blocks for r in self.running)
        assert self.kv.free + own + self.cache.used_blocks() == self.kv.total
        assert 0 <= self.cache.idle_blocks <= self.kv.free


def test_nothing_is_cached_at_first_and_everything_but_the_last_token_later() -> None:
    pool = Pool(100)
    assert pool.admit(request(0, 24, (1, 2, 3))) == 0
    assert pool.admit(request(1, 24, (1, 2, 3))) == 16, "the last granule is computed again, for the first token"
    assert pool.admit(request(2, 25, (1, 2, 3, 4))) == 24
    assert pool.admit(request(3, 30, (1, 12, 13))) == 8
    assert pool.admit(request(4, 30, (7, 17, 27))) == 0
    pool.check()


def test_adapters_share_nothing() -> None:
    pool = Pool(100)
    pool.admit(request(0, 24, (1, 2, 3), adapter=1))
    assert pool.admit(request(1, 24, (1, 2, 3), adapter=2)) == 0
    assert pool.admit(request(2, 24, (1, 2, 3))) == 0
    assert pool.admit(request(3, 24, (1, 2, 3), adapter=1)) == 16


def test_without_hash_ids_or_after_a_preemption_nothing_is_looked_up() -> None:
    pool = Pool(100)
    pool.admit(request(0, 24, (1, 2, 3)))
    assert pool.admit(request(1, 24, None)) == 0
    again = request(2, 24, (1, 2, 3))
    again.emitted = 1
    assert pool.admit(again) == 0
    pool.check()


def test_idle_granules_count_as_free_and_come_back() -> None:
    pool = Pool(10)
    first = request(0, 32, (1, 2, 3, 4))
    pool.admit(first)
    assert pool.kv.free == 2
    pool.end(first)
    assert (pool.kv.free, pool.cache.idle_blocks) == (10, 8)
    assert pool.admit(request(1, 20, (1, 2, 7))) == 16
    assert (pool.kv.free, pool.cache.idle_blocks) == (5, 4)
    pool.check()


def test_the_least_recently_freed_granule_goes_first_and_deeper_before_shallower() -> None:
    pool = Pool(10)
    one, two = request(0, 16, (1, 2)), request(1, 16, (5, 6))
    pool.admit(one)
    pool.admit(two)
    pool.end(one)
    pool.end(two)
    pool.kv.take(6)  # leaves 4 blocks for 8 cached ones
    assert pool.cache.idle_blocks == 4
    assert pool.kv.cached(request(2, 24, (5, 6))) == (16, 4)
    assert pool.kv.cached(request(3, 24, (1, 2))) == (0, 0)
    pool.kv.take(1)
    assert pool.kv.cached(request(4, 24, (5, 6))) == (8, 2)


def test_a_piece_that_two_compute_at_once_is_cached_once() -> None:
    cache = PrefixCache(GRANULE, BLOCK)
    kv = KvBlocks(100, BLOCK, cache)
    one, two = request(0, 16, (1, 2)), request(1, 16, (1, 2))
    kv.admit(one, 0, 16)
    kv.admit(two, 0, 16)
    kv.prompt_done(one)
    kv.prompt_done(two)
    assert (one.shared_blocks, two.shared_blocks) == (4, 0)
    assert kv.free + 4 + cache.used_blocks() == 100
    kv.give_back(two, 4)
    assert (kv.free, cache.idle_blocks) == (96, 0)
    kv.give_back(one, 4)
    assert (kv.free, cache.idle_blocks) == (100, 4)


def test_a_granule_holds_whole_blocks() -> None:
    with pytest.raises(ValueError, match="not a whole number"):
        PrefixCache(20, 16)


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
    for index, (group, prompt, adapter, end, which) in enumerate(events):
        if end and pool.running:
            pool.end(pool.running[which % len(pool.running)])
        else:
            new = request(index, prompt, path(group, -(-prompt // GRANULE)), adapter)
            held = {(r.adapter, g) for r in pool.running for g in r.granules}
            cached = pool.admit(new)
            if cached is not None:
                assert cached % GRANULE == 0 and cached < prompt
                sure = 0  # granules that running requests share are certainly found
                while sure < (prompt - 1) // GRANULE and (adapter, new.prefix[sure]) in held:  # type: ignore[index]
                    sure += 1
                assert cached >= sure * GRANULE
        pool.check()
    for left in list(pool.running):
        pool.end(left)
    assert pool.kv.free == blocks
    assert pool.cache.used_blocks() == 0
    pool.kv.take(blocks)
    assert pool.cache.idle_blocks == 0
