"""What the baselines of the field share: whole prompts beside all decodes, memory for the whole request at admission.

A request is admitted with the KV blocks of its prompt and all of its output (its output length stands for the limit
that a client would set), as systems do that cannot preempt: nothing is ever recomputed. One step computes the prompts
that were just admitted, never split, and a token for everyone else. Adapters wait in pinned host memory and are copied
into a slot in the step that needs them, which waits for it; the least recently used one leaves.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from simlora.engines.base import KV, SEQS, SLOTS, TOKENS, Capacity
from simlora.engines.request import Request
from simlora.engines.sync_engine import Load, SyncEngine
from simlora.latency.step import HOST, StepPlan
from simlora.memory.residents import ResidentSet


@dataclass(frozen=True)
class BaselineLimits:
    """Settings of a baseline engine."""

    max_num_seqs: int
    max_num_batched_tokens: int
    """At least the longest prompt: prompts are not split."""
    kv_blocks: int
    block_size: int
    switch_after: int = 30
    """Engines that serve one adapter at a time: so many waiting requests of others close the batch."""


class BaselineEngine(SyncEngine):
    """Subclasses order the waiting requests: `next_request` and `take`.

    Memory is reserved and the batch only shrinks between plans, so whoever cannot join now cannot before somebody
    leaves: the reason is found when a request comes, and holds until the run in progress ends.
    """

    def __init__(self, limits: BaselineLimits, slots: ResidentSet | None) -> None:
        """slots: None with LoRA off."""
        super().__init__(Capacity(limits.kv_blocks, limits.block_size, slots.capacity if slots is not None else 0))
        self.limits, self.slots = limits, slots
        self.free = limits.kv_blocks
        """KV blocks that nobody has reserved."""
        self._planned = -1
        """`version` of the last plan of decodes alone."""

    # --- what a baseline decides --------------------------------------------------------------------------------

    @abstractmethod
    def next_request(self) -> Request | None:
        """The next one to be admitted, if anything is; None leaves `blocked` as the reason."""

    @abstractmethod
    def take(self, request: Request) -> None:
        """Remove what next_request returned from the queue."""

    def refuses(self, request: Request) -> bool:
        """Whether the policy keeps out a request that there is room for."""
        return False

    def switch_s(self, chunks: list[tuple[Request, int]]) -> float:
        """Seconds before a step with these prompts in which the GPU prepares for them."""
        return 0.0

    # --- admission ----------------------------------------------------------------------------------------------

    def fits(self, request: Request) -> bool:
        limits = self.limits
        return self.blocks(request) <= limits.kv_blocks and request.prompt_tokens <= limits.max_num_batched_tokens

    def blocks(self, request: Request) -> int:
        """KV blocks that a request reserves; its last token is never written."""
        return -(-(request.prompt_tokens + request.output_tokens - 1) // self.limits.block_size)

    def arrives(self, request: Request) -> bool:
        """The request is the first in its queue: whether the next plan can admit it. Sets arrival_reason."""
        reason = self.keeps_out(request, self.decodes.count)
        self.blocked = self.arrival_reason = TOKENS if reason is None else reason
        return reason is None

    def keeps_out(self, request: Request, tokens: int) -> int | None:
        """Why the request does not join a step that has `tokens` tokens already; None if it does."""
        reason = self._obstacle(request, tokens)
        return SLOTS if reason is None and self.refuses(request) else reason

    def _obstacle(self, request: Request, tokens: int) -> int | None:
        limits = self.limits
        if len(self.running) >= limits.max_num_seqs:
            return SEQS
        if self.blocks(request) > self.free:
            return KV
        if request.adapter and request.adapter not in self.active and not self._has_slot(request.adapter):
            return SLOTS
        return TOKENS if tokens + request.prompt_tokens > limits.max_num_batched_tokens else None

    def _has_slot(self, adapter: int) -> bool:
        assert self.slots is not None
        return adapter in self.slots or self.slots.can_add()

    def form_step(self, now_s: float) -> StepPlan | None:
        chunks: list[tuple[Request, int]] = []
        loads: list[Load] = []
        self.loading = []
        self.blocked = TOKENS
        tokens = self.decodes.count
        while (request := self.next_request()) is not None:
            reason = self.keeps_out(request, tokens)
            if reason is not None:
                self.blocked = reason
                break
            self.take(request)
            self._join(request, loads, now_s)
            chunks.append((request, request.prompt_tokens))
            tokens += request.prompt_tokens
        if chunks:
            plan = self.plan(chunks, loads=tuple(loads), extra_s=self.switch_s(chunks))
            for request, _ in chunks:
                self.complete_prompt(request)
            self.version += 1
            return plan
        if not self.decodes.count:
            return None
        changed, self._planned = self.version != self._planned, self.version
        return self.plan((), self.steps_to_completion(), changed=changed)

    def _join(self, request: Request, loads: list[Load], now_s: float) -> None:
        self.free -= self.blocks(request)
        adapter, new = request.adapter, request.adapter not in self.active
        self.admit(request, now_s)
        if not adapter:
            return
        assert self.slots is not None
        missing = adapter not in self.slots
        if missing:
            self.evictions += self.slots.add(adapter, now_s) is not None
            loads.append((adapter, request.rank, HOST))
            self.loading.append(request)
        if new:
            self.slots.use(adapter)
        self.count_load(request, int(missing))

    def release(self, request: Request, now_s: float) -> None:
        self.free += self.blocks(request)
        if request.adapter and request.adapter not in self.active:
            assert self.slots is not None
            self.slots.release(request.adapter, now_s)

    def extend(self, steps: int) -> None:
        """Everything is reserved."""

    def used_blocks(self) -> int:
        return self.limits.kv_blocks - self.free

    # --- checks -------------------------------------------------------------------------------------------------

    def violations(self) -> Iterator[tuple[str, str]]:
        reserved = sum(map(self.blocks, self.running.values()))
        if self.free < 0 or self.free + reserved != self.limits.kv_blocks:
            yield "INV-3", f"free {self.free} + reserved {reserved} != {self.limits.kv_blocks} KV blocks"
        if len(self.running) > self.limits.max_num_seqs:
            yield "INV-3", "more running requests than max_num_seqs"
        used = {request.adapter for request in self.running.values()} - {0}
        if used != set(self.active.requests):
            yield "INV-4", f"active adapters {set(self.active.requests)} but the batch holds {used}"
        for adapter in used:
            if self.slots is None or self.slots.uses(adapter) != 1:
                yield "INV-4", f"adapter {adapter} is in the step but holds no slot"
