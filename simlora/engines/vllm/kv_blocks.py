"""KV blocks of one vLLM replica: a count, since any block serves any request, and the prefix cache on top."""

from __future__ import annotations

from collections.abc import Sequence

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

    def give_back(self, request: int, blocks: int) -> None:
        """Free a request's blocks (`blocks` counts its shared prefix too, which stays cached)."""
        self.free += blocks
        if self.cache is not None:
            self.free += self.cache.release(request)

    def freed_by(self, requests: Sequence[int], blocks: int) -> int:
        """Blocks that these requests, which hold `blocks` blocks, shared ones included, give back when they end."""
        return blocks if self.cache is None else blocks + self.cache.freed_by(requests)
