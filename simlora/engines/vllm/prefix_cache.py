"""Automatic prefix caching as vLLM does it, in granules of one prefix hash id.

A granule is the KV of one hashed prefix piece of prefix_block_tokens tokens under one adapter (vLLM mixes the adapter's
name into the block hash, so adapters share nothing). A granule that no request uses stays cached until its blocks are
needed; the least recently freed goes first. Its blocks count as free, since the scheduler may take them at any time.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence

from simlora.engines.request import Request


class PrefixCache:
    """Cached granules of one replica."""

    def __init__(self, granule_tokens: int, block_size: int) -> None:
        if granule_tokens % block_size:
            raise ValueError(f"a granule of {granule_tokens} tokens is not a whole number of {block_size}-token blocks")
        self.granule_tokens = granule_tokens
        self.granule_blocks = granule_tokens // block_size
        self._users: dict[tuple[int, int], int] = {}
        self._idle: OrderedDict[tuple[int, int], None] = OrderedDict()
        self.idle_blocks = 0
        self.hit_tokens = 0
        self.query_tokens = 0

    def lookup(self, request: Request) -> tuple[int, int]:
        """(cached tokens, of their blocks those that are idle and so leave the free blocks when used).

        At least one token is always computed, so the last granule of a fully cached prompt does not count.
        """
        if request.prefix is None or request.emitted:
            return 0, 0
        hits, idle = 0, 0
        for granule in request.prefix[: (request.prefill_tokens - 1) // self.granule_tokens]:
            key = (request.adapter, granule)
            if key not in self._users:
                break
            hits += 1
            idle += self._users[key] == 0
        return hits * self.granule_tokens, idle * self.granule_blocks

    def acquire(self, request: Request, cached_tokens: int) -> int:
        """Use the granules found by `lookup`; returns the blocks that are no longer free."""
        taken = 0
        request.hits = cached_tokens // self.granule_tokens
        request.granules = (request.prefix or ())[: request.hits]
        for granule in request.granules:
            key = (request.adapter, granule)
            if self._users[key] == 0:
                del self._idle[key]
                taken += self.granule_blocks
            self._users[key] += 1
        request.shared_blocks = request.hits * self.granule_blocks
        self.idle_blocks -= taken
        self.query_tokens += request.prefill_tokens
        self.hit_tokens += cached_tokens
        return taken

    def insert(self, request: Request) -> None:
        """The prompt is computed: its whole granules that nobody cached yet become shared."""
        if request.prefix is None or request.emitted:
            return
        granules = list(request.granules)
        for granule in request.prefix[request.hits : request.prefill_tokens // self.granule_tokens]:
            key = (request.adapter, granule)
            if key in self._users:
                break  # somebody computed the same piece meanwhile; this copy stays private
            self._users[key] = 1
            granules.append(granule)
            request.shared_blocks += self.granule_blocks
        request.granules = tuple(granules)

    def release(self, request: Request) -> int:
        """The request ended or was preempted; returns the shared blocks that become free (but stay cached)."""
        freed = 0
        for granule in reversed(request.granules):
            key = (request.adapter, granule)
            self._users[key] -= 1
            if self._users[key] == 0:
                self._idle[key] = None
                freed += self.granule_blocks
        self.idle_blocks += freed
        request.granules, request.shared_blocks, request.hits = (), 0, 0
        return freed

    def freed_by(self, requests: Sequence[Request]) -> int:
        """Blocks that would become free if these requests ended now."""
        leaving = Counter((r.adapter, granule) for r in requests for granule in r.granules)
        return self.granule_blocks * sum(1 for key, users in leaving.items() if users == self._users[key])

    def shrink(self, free_blocks: int) -> None:
        """Drop the least recently used idle granules until they fit into the free blocks."""
        while self.idle_blocks > free_blocks:
            key, _ = self._idle.popitem(last=False)
            del self._users[key]
            self.idle_blocks -= self.granule_blocks

    def used_blocks(self) -> int:
        """Blocks of granules that some request uses (slow; for checks)."""
        return self.granule_blocks * sum(1 for users in self._users.values() if users)
