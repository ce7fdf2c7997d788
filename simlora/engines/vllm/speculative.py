"""Speculative decoding as an acceptance model.

Each step computes 1 + k tokens per request and emits one more than the draft tokens accepted; draft token i is accepted
with probability a, given the ones before it were, so a step emits 1 + min(G, k) tokens, G geometric. The draws belong
to the request (seed and number), so that preemption or other requests do not shift them. KV slots are taken for all
1 + k tokens, as the engine does with its lookahead.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np

from simlora.engines.decode_batch import DecodeBatch


class SpeculativeBatch(DecodeBatch):
    """Decoding requests that emit several tokens a step. Costs O(requests) per step, and steps are not alike."""

    __slots__ = ("_acceptance", "_context_tokens", "_draft", "_emitted", "_seed", "emitted_per_step", "tokens_per_step")

    steady = False

    def __init__(self, block_size: int, num_speculative_tokens: int, acceptance_rate: float, seed: int) -> None:
        super().__init__(block_size)
        self._draft, self._acceptance, self._seed = num_speculative_tokens, acceptance_rate, seed
        self.tokens_per_step = 1 + num_speculative_tokens
        self.emitted_per_step = sum(acceptance_rate**i for i in range(num_speculative_tokens + 1))
        self._context_tokens: dict[int, int] = {}
        """Request -> its context when its prompt was complete."""
        self._emitted: dict[int, list[int]] = {}
        """Request -> tokens emitted by its first 0, 1, 2, ... decode steps of this residence."""

    def add(self, request: int, context_tokens: int, tokens_left: int, rank: int, step: int) -> None:
        emitted = self._draw(request, tokens_left - 1)
        self._context_tokens[request], self._emitted[request] = context_tokens, emitted
        last = step + len(emitted) - 1
        self.members[request] = 0, last, step, rank
        self.count += 1
        if rank:
            self.lora_count += 1
            self.rank_sum += rank
        heappush(self.heap, (last, request))

    def _draw(self, request: int, tokens: int) -> list[int]:
        rng = np.random.default_rng([self._seed, request])
        emitted = [0]
        while emitted[-1] < tokens:
            hits = rng.random(self._draft) < self._acceptance
            accepted = self._draft if hits.all() else int(hits.argmin())
            emitted.append(min(tokens, emitted[-1] + 1 + accepted))
        return emitted

    def retire(self, step: int) -> list[tuple[int, int]]:
        out = []
        while self.heap and self.heap[0][0] < step:
            last, request = heappop(self.heap)
            out.append((request, self.blocks(request, last)))
            self._leave(request)
        return out

    def remove(self, request: int) -> None:
        self.heap.remove((self.members[request][1], request))
        heapify(self.heap)
        self._leave(request)

    def _leave(self, request: int) -> None:
        rank = self.members.pop(request)[3]
        del self._emitted[request], self._context_tokens[request]
        self.count -= 1
        if rank:
            self.lora_count -= 1
            self.rank_sum -= rank

    def _context(self, request: int, step: int) -> int:
        emitted = self._emitted[request]
        return self._context_tokens[request] + emitted[min(step - self.members[request][2], len(emitted)) - 1]

    def context_tokens(self, step: int) -> int:
        return sum(self._context(request, step) for request in self.members)

    def growth(self, step: int) -> int:
        return sum(self.request_growth(request, step) for request in self.members)

    def request_growth(self, request: int, step: int) -> int:
        return self.blocks(request, step) - self.blocks(request, step - 1)

    def blocks(self, request: int, step: int) -> int:
        if step <= self.members[request][2]:
            return -(-self._context_tokens[request] // self.block_size)
        return -(-(self._context(request, step) + self.tokens_per_step) // self.block_size)

    def most_blocks(self, prompt_tokens: int, output_tokens: int) -> int:
        draft = self.tokens_per_step if output_tokens > 1 else 1
        return -(-(prompt_tokens + max(output_tokens - 2, 0) + draft) // self.block_size)

    def emitted(self, request: int, step: int) -> int:
        emitted = self._emitted[request]
        return 1 + emitted[min(step - self.members[request][2], len(emitted)) - 1]
