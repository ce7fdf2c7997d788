"""The adapters of a step as LoRAX's kernels see them: by padded rank."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from simlora.engines.request import Request
from simlora.latency.step import AdapterMix, StepPlan


class PaddedRanks:
    """Adapters of the batch and of a step. pad: own rank -> the rank that it is stored and computed with."""

    def __init__(self, pad: Callable[[int], int]) -> None:
        self._pad = pad
        self.requests: dict[int, int] = {}
        """Adapter -> its requests in the batch, the base model's as adapter 0."""
        self._adapters: dict[int, int] = {}
        """Padded rank -> adapters in the batch."""
        self._rank_sum = 0
        self._decode_tokens = 0
        """Padded ranks of the decoding requests."""

    def join(self, request: Request) -> None:
        requests = self.requests.get(request.adapter, 0)
        self.requests[request.adapter] = requests + 1
        if request.adapter and not requests:
            self._change(self._pad(request.rank), 1)

    def decodes(self, request: Request) -> None:
        """Its prompt is complete."""
        if request.adapter:
            self._decode_tokens += self._pad(request.rank)

    def leave(self, request: Request) -> None:
        """It decoded its last token."""
        requests = self.requests[request.adapter] - 1
        if requests:
            self.requests[request.adapter] = requests
        else:
            del self.requests[request.adapter]
        if request.adapter:
            rank = self._pad(request.rank)
            self._decode_tokens -= rank
            if not requests:
                self._change(rank, -1)

    def mix(self, chunks: Sequence[tuple[Request, int]], decodes: bool) -> AdapterMix:
        """A step of prompt chunks (request, new tokens), with all decoding requests or without."""
        prompts: dict[int, int] = {}
        rank_tokens = 0
        for request, new_tokens in chunks:
            if request.adapter:
                rank = prompts[request.adapter] = self._pad(request.rank)
                rank_tokens += new_tokens * rank
        if decodes:  # whoever is in the batch takes part
            ranks, rank_sum, rank_tokens = set(self._adapters), self._rank_sum, rank_tokens + self._decode_tokens
        else:
            ranks, rank_sum = set(prompts.values()), sum(prompts.values())
        return AdapterMix(rank_sum, rank_tokens, max(ranks, default=0), len(ranks))

    def _change(self, rank: int, adapters: int) -> None:
        self._rank_sum += adapters * rank
        left = self._adapters.get(rank, 0) + adapters
        if left:
            self._adapters[rank] = left
        else:
            del self._adapters[rank]


class LazyGraphs:
    """CUDA graphs that are captured when a decode step first needs them, which holds the step up."""

    def __init__(
        self, graph_key: Callable[[StepPlan], Hashable | None], capture_s: Callable[[StepPlan], float]
    ) -> None:
        """graph_key: the graph of a step, None where it has none. capture_s: seconds of capturing it; 0 where it is
        captured when the engine starts."""
        self._graph_key, self._capture_s = graph_key, capture_s
        self._captured: set[Hashable] = set()

    def stall_s(self, plan: StepPlan) -> float:
        """Seconds that the decode step waits for its graph; from now on it is captured."""
        key = self._graph_key(plan)
        if key is None or key in self._captured:
            return 0.0
        self._captured.add(key)
        return self._capture_s(plan)
