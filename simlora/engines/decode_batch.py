"""The requests that decode one token a step, as aggregates: no work per token.

While a request decodes, its context before step n is request.base + n, so the total context is base_sum + n * count,
and it needs a new KV block in every step with (base + n) % block_size == 0: a histogram of block_size bins answers how
many do. Leavers come from a heap keyed by the step that emits the last token.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from simlora.engines.request import Request


class DecodeBatch:
    """Decoding requests of one engine, indexed by the global step number."""

    __slots__ = ("base_sum", "bins", "block_size", "count", "heap", "lora_count", "rank_sum")

    tokens_per_step = 1
    """Tokens computed for each request in a step."""
    emitted_per_step = 1.0
    """Tokens that come out of them, on average."""
    steady = True
    """Every step of an unchanged batch is alike, so that many can be planned at once."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.bins = [0] * block_size
        self.heap: list[tuple[int, int, Request]] = []
        """(step that emits the last token, request number, request)."""
        self.count = 0
        self.base_sum = 0
        self.lora_count = 0
        self.rank_sum = 0

    def add(self, request: Request, step: int) -> None:
        """The request's prompt is complete in `step`, which emits its first token of this residence."""
        request.start_step = step
        request.base = request.prefill_tokens - step - 1
        request.last_step = step + request.output_tokens - request.emitted - 1
        self.base_sum += request.base
        self.bins[-request.base % self.block_size] += 1
        self._join(request)

    def retire(self, step: int) -> list[Request]:
        """Take out the requests whose last token is emitted before `step`."""
        heap, out = self.heap, []
        while heap and heap[0][0] < step:
            request = heappop(heap)[2]
            self._leave(request)
            out.append(request)
        return out

    def remove(self, request: Request) -> None:
        """Take out a preempted request."""
        self.heap.remove((request.last_step, request.index, request))
        heapify(self.heap)
        self._leave(request)

    def context_tokens(self, step: int) -> int:
        """Tokens in the KV cache before `step`, over all requests."""
        return self.base_sum + step * self.count

    def growth(self, step: int) -> int:
        """KV blocks that `step` needs on top of those held."""
        return self.bins[step % self.block_size]

    def request_growth(self, request: Request, step: int) -> int:
        """The same for one request."""
        return int((request.base + step) % self.block_size == 0)

    def blocks(self, request: Request, step: int) -> int:
        """KV blocks of a request once `step` is planned, shared prefix blocks included."""
        return -(-(request.base + step + 1) // self.block_size)

    def most_blocks(self, prompt_tokens: int, output_tokens: int) -> int:
        """KV blocks that a request alone needs at its longest."""
        return -(-(prompt_tokens + output_tokens - 1) // self.block_size)

    def emitted(self, request: Request, step: int) -> int:
        """Tokens of this residence that came out of the steps before `step`."""
        return step - request.start_step

    def new_blocks(self, step: int, steps: int) -> int:
        """KV blocks needed by `steps` steps from `step` on, with the batch as it is."""
        size, bins = self.block_size, self.bins
        cycles, rest = divmod(steps, size)
        start = step % size
        end = start + rest
        if end <= size:
            return cycles * self.count + sum(bins[start:end])
        return cycles * self.count + sum(bins[start:]) + sum(bins[: end - size])

    def steps_within(self, step: int, free_blocks: int) -> int:
        """How many steps from `step` on fit into free_blocks."""
        cycles, free_blocks = divmod(free_blocks, self.count)
        steps = cycles * self.block_size
        for offset in range(self.block_size):
            free_blocks -= self.bins[(step + offset) % self.block_size]
            if free_blocks < 0:
                return steps + offset
        return steps + self.block_size

    def _join(self, request: Request) -> None:
        self.count += 1
        if request.adapter:
            self.lora_count += 1
            self.rank_sum += request.rank
        heappush(self.heap, (request.last_step, request.index, request))

    def _leave(self, request: Request) -> None:
        self.count -= 1
        self.base_sum -= request.base
        self.bins[-request.base % self.block_size] -= 1
        if request.adapter:
            self.lora_count -= 1
            self.rank_sum -= request.rank
