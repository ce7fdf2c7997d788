"""The adapters of the planned step by their own ranks, for engines that do not pad them."""

from __future__ import annotations

from simlora.latency.step import AdapterMix


class ActiveAdapters:
    """Requests per adapter, and adapters per rank. Base requests (adapter 0) do not count."""

    __slots__ = ("_by_rank", "_rank", "rank_sum", "requests")

    def __init__(self) -> None:
        self.requests: dict[int, int] = {}
        """Adapter -> its requests in the batch."""
        self.rank_sum = 0
        """Over the distinct adapters."""
        self._rank: dict[int, int] = {}
        self._by_rank: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.requests)

    def __contains__(self, adapter: int) -> bool:
        return adapter in self.requests

    def join(self, adapter: int, rank: int) -> bool:
        """One more request. True: its adapter is new to the batch."""
        if not adapter:
            return False
        requests = self.requests.get(adapter, 0)
        self.requests[adapter] = requests + 1
        if requests:
            return False
        self._rank[adapter] = rank
        self.rank_sum += rank
        self._by_rank[rank] = self._by_rank.get(rank, 0) + 1
        return True

    def leave(self, adapter: int) -> bool:
        """One request less. True: it was the last of its adapter."""
        if not adapter:
            return False
        requests = self.requests[adapter] - 1
        if requests:
            self.requests[adapter] = requests
            return False
        del self.requests[adapter]
        rank = self._rank.pop(adapter)
        self.rank_sum -= rank
        left = self._by_rank[rank] - 1
        if left:
            self._by_rank[rank] = left
        else:
            del self._by_rank[rank]
        return True

    @property
    def max_rank(self) -> int:
        """Largest own rank; 0 without adapters."""
        return max(self._by_rank, default=0)

    def mix(self, rank_tokens: int) -> AdapterMix:
        """The step in which all of these adapters take part. rank_tokens: sum over its LoRA tokens of their ranks."""
        return AdapterMix(self.rank_sum, rank_tokens, self.max_rank, len(self._by_rank))
