"""How LoRAX puts a batch of prompts together: which requests, and the KV blocks that are reserved for them.

Source: router/src/scheduler.rs, next_batch, and router/src/infer.rs, batching_task (a7394ba).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import floor

from simlora.engines.base import KV, TOKENS
from simlora.engines.lorax.loader import LOAD, OFFLOAD, Loader
from simlora.engines.lorax.queues import AdapterQueues
from simlora.engines.request import Request

Chunk = tuple[Request, int]
"""(request, prompt tokens to compute)."""
OUT_OF_REACH = 1 << 60
"""A gate that no number of waiting requests opens."""


@dataclass(frozen=True)
class LoraxLimits:
    """What the scheduler works with, by the launcher's names."""

    kv_blocks: int
    block_size: int
    max_batch_prefill_tokens: int
    waiting_served_ratio: float = 1.2
    max_waiting_tokens: int = 20
    max_concurrent_requests: int = 1024
    max_active_adapters: int = 1024
    adapter_cycle_time_s: float = 2.0
    chunked_prefill: bool = False
    eager_prefill: bool = True

    def blocks(self, request: Request) -> int:
        """KV blocks for the prompt and all tokens to come but the last, which is never read."""
        return -(-(request.prompt_tokens + request.output_tokens - 1) // self.block_size)


@dataclass
class Round:
    """Attempts to add prompts to a running batch between two decode steps: all under the terms of the first."""

    min_size: int
    """Fewest requests that a new batch must have; 0: any."""
    prefill_tokens: int
    """Budget of prompt tokens of a new batch."""
    prefilled: bool = False
    left: set[int] = field(default_factory=set)
    """Adapters of requests that left since the round began, which count as in use until it ends."""


class Batching:
    """The waiting requests of one replica and the KV blocks."""

    def __init__(self, limits: LoraxLimits, loader: Loader) -> None:
        self.limits, self.loader = limits, loader
        self.queues = AdapterQueues(limits.max_active_adapters, limits.adapter_cycle_time_s)
        self.free = limits.kv_blocks
        self.blocked = TOKENS
        """What stopped the last attempt, for requests whose adapter is ready (engines/base.py)."""
        self.gate = 0
        """Where the last attempt did not even look at the adapters: waiting requests from which on the same attempt
        would; 0 where it did."""
        self.short = False
        """The last attempt came to fewer requests than it needed."""

    def open_round(self, batch_size: int, step_tokens: int, waited: int) -> Round:
        """step_tokens: what the batch computes in its next step anyway. waited: steps since the last prompts."""
        limits = self.limits
        if limits.chunked_prefill:
            return Round(0, max(limits.max_batch_prefill_tokens - step_tokens, 0))
        patient = waited < limits.max_waiting_tokens
        min_size = floor(batch_size * limits.waiting_served_ratio) if patient else 0
        return Round(min_size, limits.max_batch_prefill_tokens)

    def next_batch(self, now_s: float, terms: Round, in_use: Callable[[int], bool]) -> list[Chunk]:
        """The requests of a new batch, taken out of their queues, with blocks reserved; empty: none can be formed."""
        queues = self.queues
        self.blocked, self.gate, self.short = TOKENS, 0, False
        if not terms.prefill_tokens:
            self.gate = OUT_OF_REACH
            return []
        if not queues.waiting or queues.waiting < terms.min_size:
            self.gate = max(terms.min_size, 1)
            return []
        moves = queues.exchange(now_s, in_use)
        for queue in moves.offload:
            self.loader.move(OFFLOAD, queue)
        for queue in moves.load:
            self.loader.move(LOAD, queue)
        batch = self._collect(now_s, terms.prefill_tokens)
        if batch and len(batch) < terms.min_size:
            for request, _ in reversed(batch):
                self.free += self.limits.blocks(request)
                queues.push_front(request)
            self.blocked, self.short = TOKENS, True
            return []
        return batch

    def _collect(self, now_s: float, budget: int) -> list[Chunk]:
        """Heads of servable queues, until one finds no blocks or the budget is used up."""
        queues, batch = self.queues, []
        while (queue := queues.choose(now_s)) is not None:
            request = queue.requests[0]
            blocks, tokens = self.limits.blocks(request), request.prompt_tokens
            if blocks > self.free:
                self.blocked = KV
                break
            if tokens > budget:
                if not self.limits.chunked_prefill or not budget:
                    break
                tokens = budget
            queues.pop(queue)
            self.free -= blocks
            budget -= tokens
            batch.append((request, tokens))
            if tokens < request.prompt_tokens:
                break
        return batch
