"""KV blocks of one vLLM replica: a count, since any block serves any request, and the prefix cache on top."""

from __future__ import annotations

from collections.abc import Sequence

from simlora.engines.request import Request
from simlora.engines.vllm.prefix_cache import PrefixCache


class KvBlocks:
    """Free and used blocks. Cached prefix granules that nobody uses count as free and are dropped when needed."""

    __slots__ = ("block_size", "cache", "free", "total")

    def __init__(self, total: int, block_size: int, cache: PrefixCache | None = None) -> None:
        """total: usable blocks, the null block left out."""
        self.total, self.block_size, self.cache = total, block_size, cache
        self.free = total

    def take(self, blocks: int) -> None:
        """The caller has made sure that they are free."""
        self.free -= blocks
        if self.cache is not None:
            self.cache.shrink(self.free)

    def give_back(self, request: Request, blocks: int) -> None:
        """Free a request's blocks (`blocks` counts its shared prefix too, which stays cached)."""
        self.free += blocks - request.shared_blocks
        if self.cache is not None:
            self.free += self.cache.release(request)

    def freed_by(self, requests: Sequence[Request], blocks: int) -> int:
        """Blocks that these requests, which hold `blocks` blocks, shared ones included, give back when they end."""
        shared = sum(request.shared_blocks for request in requests)
        return blocks - shared + (0 if self.cache is None else self.cache.freed_by(requests))

    def cached(self, request: Request) -> tuple[int, int]:
        """(prompt tokens found in the cache, free blocks that using them would take)."""
        return (0, 0) if self.cache is None else self.cache.lookup(request)

    def admit(self, request: Request, cached_tokens: int, tokens: int) -> None:
        """Take the blocks for the first `tokens` tokens, of which cached_tokens are in the cache."""
        if self.cache is not None:
            self.free -= self.cache.acquire(request, cached_tokens)
        self.take(-(-tokens // self.block_size) - cached_tokens // self.block_size)

    def prompt_done(self, request: Request) -> None:
        """The prompt is computed: it can serve others."""
        if self.cache is not None:
            self.cache.insert(request)
