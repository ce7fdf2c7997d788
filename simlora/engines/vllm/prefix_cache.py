"""Automatic prefix caching as vLLM does it, in granules of one prefix hash id.

A granule is the KV of one hashed prefix piece of prefix_block_tokens tokens under one adapter (vLLM mixes the adapter's
name into the block hash, so adapters share nothing). A granule that no request uses stays cached until its blocks are
needed; the least recently freed goes first. Its blocks count as free, since the scheduler may take them at any time.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence

from simlora.engines.request_columns import RequestColumns

Granule = tuple[int, int]
"""(adapter, prefix hash id)."""


class PrefixCache:
    """Cached granules of one replica."""

    def __init__(self, granule_tokens: int, block_size: int, requests: RequestColumns) -> None:
        if granule_tokens % block_size:
            raise ValueError(f"a granule of {granule_tokens} tokens is not a whole number of {block_size}-token blocks")
        self.granule_tokens = granule_tokens
        self.granule_blocks = granule_tokens // block_size
        self._requests = requests
        self._users: dict[Granule, int] = {}
        self._idle: OrderedDict[Granule, None] = OrderedDict()
        self._held: dict[int, list[Granule]] = {}
        """Request -> the granules that it shares."""
        self.idle_blocks = 0

    def _pieces(self, request: int, tokens: int) -> Sequence[int]:
        """Hash ids of the whole pieces in the request's first `tokens` tokens; none once it was preempted."""
        prefix = self._requests.prefix
        if prefix is None or prefix[request] is None or self._requests.emitted[request]:
            return ()
        return prefix[request][: tokens // self.granule_tokens]

    def lookup(self, request: int) -> tuple[int, int]:
        """(cached tokens, of their blocks those that are idle and so leave the free blocks when used).

        At least one token is always computed, so the last granule of a fully cached prompt does not count.
        """
        hits, idle, adapter = 0, 0, self._requests.adapter[request]
        for piece in self._pieces(request, self._requests.prefill_tokens[request] - 1):
            users = self._users.get((adapter, piece))
            if users is None:
                break
            hits += 1
            idle += users == 0
        return hits * self.granule_tokens, idle * self.granule_blocks

    def acquire(self, request: int, cached_tokens: int) -> int:
        """Use the granules found by `lookup`; returns the blocks that are no longer free."""
        taken, adapter = 0, self._requests.adapter[request]
        held = [(adapter, piece) for piece in self._pieces(request, cached_tokens)]
        for key in held:
            if self._users[key] == 0:
                del self._idle[key]
                taken += self.granule_blocks
            self._users[key] += 1
        self._held[request] = held
        self.idle_blocks -= taken
        return taken

    def insert(self, request: int) -> None:
        """The prompt is computed: its whole granules that nobody cached yet become shared."""
        held, adapter = self._held[request], self._requests.adapter[request]
        for piece in self._pieces(request, self._requests.prefill_tokens[request])[len(held) :]:
            key = (adapter, piece)
            if key in self._users:
                break  # somebody computed the same piece meanwhile; this copy stays private
            self._users[key] = 1
            held.append(key)

    def shared_blocks(self, request: int) -> int:
        """Of the request's blocks, those that it shares or could share."""
        return len(self._held.get(request, ())) * self.granule_blocks

    def release(self, request: int) -> int:
        """The request ended or was preempted; returns by how much the free blocks differ from those that it held:
        granules that become idle are free (but stay cached), granules that others use are not."""
        held, idle = self._held.pop(request), 0
        for key in reversed(held):
            self._users[key] -= 1
            if self._users[key] == 0:
                self._idle[key] = None
                idle += self.granule_blocks
        self.idle_blocks += idle
        return idle - len(held) * self.granule_blocks

    def freed_by(self, requests: Sequence[int]) -> int:
        """`release`, summed over all of these requests, if they ended now."""
        leaving = Counter(key for request in requests for key in self._held[request])
        idle = sum(1 for key, users in leaving.items() if users == self._users[key])
        return (idle - sum(leaving.values())) * self.granule_blocks

    def shrink(self, free_blocks: int) -> None:
        """Drop the least recently used idle granules until they fit into the free blocks."""
        while self.idle_blocks > free_blocks:
            key, _ = self._idle.popitem(last=False)
            del self._users[key]
            self.idle_blocks -= self.granule_blocks

    def used_blocks(self) -> int:
        """Blocks of granules that some request uses (slow; for checks)."""
        return self.granule_blocks * sum(1 for users in self._users.values() if users)
