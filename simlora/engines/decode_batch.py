"""The requests that decode one token a step, as aggregates: no work per token.

While a request decodes, its context before step n is base + n, so the total context is base_sum + n * count, and it
needs a new KV block in every step with (base + n) % block_size == 0: a histogram of block_size bins answers how many
do. Leavers come from a heap keyed by the step that emits the last token. Requests are known by their numbers.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush


class DecodeBatch:
    """Decoding requests of one engine, indexed by the global step number."""

    __slots__ = ("base_sum", "bins", "block_size", "count", "heap", "lora_count", "members", "rank_sum")

    tokens_per_step = 1
    """Tokens computed for each request in a step."""
    emitted_per_step = 1.0
    """Tokens that come out of them, on average."""
    steady = True
    """Every step of an unchanged batch is alike, so that many can be planned at once."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.bins = [0] * block_size
        self.heap: list[tuple[int, int]] = []
        """(step that emits the last token, request)."""
        self.members: dict[int, tuple[int, int, int, int]] = {}
        """Request -> (base, last step, first step, rank)."""
        self.count = 0
        self.base_sum = 0
        self.lora_count = 0
        self.rank_sum = 0

    def add(self, request: int, context_tokens: int, tokens_left: int, rank: int, step: int) -> None:
        """The request's prompt is complete in `step`, which emits its first token of this residence.

        context_tokens: what was computed by then, tokens of earlier residences included. tokens_left: how many come
        out from `step` on. rank: its adapter's own; 0 for the base model.
        """
        base = context_tokens - step - 1
        self.base_sum += base
        self.bins[-base % self.block_size] += 1
        self.members[request] = base, step + tokens_left - 1, step, rank
        self.count += 1
        if rank:
            self.lora_count += 1
            self.rank_sum += rank
        heappush(self.heap, (step + tokens_left - 1, request))

    def retire(self, step: int) -> list[tuple[int, int]]:
        """Take out the requests whose last token is emitted before `step`: (request, KV blocks that it holds)."""
        heap, out, size = self.heap, [], self.block_size
        while heap and heap[0][0] < step:
            last, request = heappop(heap)
            base, _, _, rank = self.members.pop(request)
            self.count -= 1
            self.base_sum -= base
            self.bins[-base % size] -= 1
            if rank:
                self.lora_count -= 1
                self.rank_sum -= rank
            out.append((request, -(-(base + last + 1) // size)))
        return out

    def remove(self, request: int) -> None:
        """Take out a preempted request."""
        base, last, _, rank = self.members.pop(request)
        self.heap.remove((last, request))
        heapify(self.heap)
        self.count -= 1
        self.base_sum -= base
        self.bins[-base % self.block_size] -= 1
        if rank:
            self.lora_count -= 1
            self.rank_sum -= rank

    def first_step(self, request: int) -> int:
        """The step that completed its prompt."""
        return self.members[request][2]

    def last_step(self, request: int) -> int:
        """The step that emits its last token."""
        return self.members[request][1]

    def context_tokens(self, step: int) -> int:
        """Tokens in the KV cache before `step`, over all requests."""
        return self.base_sum + step * self.count

    def growth(self, step: int) -> int:
        """KV blocks that `step` needs on top of those held."""
        return self.bins[step % self.block_size]

    def request_growth(self, request: int, step: int) -> int:
        """The same for one request."""
        return int((self.members[request][0] + step) % self.block_size == 0)

    def blocks(self, request: int, step: int) -> int:
        """KV blocks of a request once `step` is planned, shared prefix blocks included."""
        return -(-(self.members[request][0] + step + 1) // self.block_size)

    def most_blocks(self, prompt_tokens: int, output_tokens: int) -> int:
        """KV blocks that a request alone needs at its longest."""
        return -(-(prompt_tokens + output_tokens - 1) // self.block_size)

    def emitted(self, request: int, step: int) -> int:
        """Tokens of this residence that came out of the steps before `step`."""
        return step - self.members[request][2]

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
