"""What engines have in common that plan a step when the tokens of the one before are out.

A subclass decides what a step holds; this class keeps the decoding requests, hands out what came out, and answers what
the simulation asks. `step` counts the steps in which the decoding requests take part: a step of prompts alone leaves
their contexts as they are. A prompt emits its first token in the step that completes it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from simlora.engines.active_adapters import ActiveAdapters
from simlora.engines.base import NEVER_S, TOKENS, Capacity, Counters, Delivery, State
from simlora.engines.decode_batch import DecodeBatch
from simlora.engines.request import Request
from simlora.latency.step import Prefill, StepPlan

Load = tuple[int, int, str]
"""(adapter, own rank, tier)."""


class SyncEngine(ABC):
    """A synchronous engine. Subclasses implement form_step, enqueue, fits, release, used_blocks and the queue."""

    tokens_per_decode = 1

    def __init__(self, capacity: Capacity) -> None:
        self.capacity = capacity
        self.decodes = DecodeBatch(capacity.block_size)
        self.running: dict[int, Request] = {}
        """Requests in the batch, prompts included, in the order of admission."""
        self.active = ActiveAdapters()
        """Adapters of the running requests."""
        self.step = -1
        """The last step planned."""
        self.version = 0
        self.wake_s = NEVER_S
        self.blocked = TOKENS
        """Reason (engines/base.py) that kept the next waiting request out of the last plan."""
        self.arrival_reason = TOKENS
        self.preempted: list[Request] = []
        self.loading: list[Request] = []
        self.aborted: list[Request] = []
        self.rank_tokens = 0
        self.preemptions = 0
        self.evictions = 0
        self.tier_counts = [0, 0, 0, 0]
        self.loads_by_rank: dict[int, int] = {}
        self.num_aborted = 0
        self._first: list[Request] = []

    # --- what an engine decides ---------------------------------------------------------------------------------

    @abstractmethod
    def fits(self, request: Request) -> bool: ...

    @abstractmethod
    def enqueue(self, request: Request, now_s: float) -> bool: ...

    @abstractmethod
    def form_step(self, now_s: float) -> StepPlan | None: ...

    @abstractmethod
    def release(self, request: Request, now_s: float) -> None:
        """The request has its last token and is not in `running`, `active` or `decodes` any more: free its memory."""

    @abstractmethod
    def extend(self, steps: int) -> None:
        """`steps` more decode steps like the last one: take the KV memory that they write."""

    @abstractmethod
    def used_blocks(self) -> int: ...

    @abstractmethod
    def waiting_count(self) -> int: ...

    @abstractmethod
    def violations(self) -> Iterator[tuple[str, str]]: ...

    # --- for subclasses -----------------------------------------------------------------------------------------

    def admit(self, request: Request, now_s: float) -> None:
        """The request joins the batch."""
        self.running[request.index] = request
        self.active.join(request.adapter, request.rank)
        if request.admitted_s != request.admitted_s:
            request.admitted_s = now_s

    def complete_prompt(self, request: Request) -> None:
        """The step just planned computes the last of the prompt: its first token comes out, and it decodes from then
        on."""
        step, left = self.step, request.output_tokens - request.emitted
        request.computed = request.prefill_tokens
        request.base, request.start_step, request.last_step = request.prefill_tokens - step - 1, step, step + left - 1
        self.decodes.add(request.index, request.prefill_tokens, left, request.rank, step)
        self._first.append(request)

    def blocks_after(self, request: Request, step: int) -> int:
        """Units of KV memory that a request whose prompt is complete holds once `step` is planned."""
        return -(-(request.base + step + 1) // self.capacity.block_size)

    def plan(
        self,
        chunks: Sequence[tuple[Request, int]],
        max_repeat: int = 1,
        decodes: bool = True,
        loads: tuple[Load, ...] = (),
        changed: bool = True,
        copying: bool = False,
        extra_s: float = 0.0,
    ) -> StepPlan:
        """The next step: prompt chunks [(request, new tokens)], whose `computed` is still what they start from, with or
        without the decoding requests. Sets rank_tokens, and advances `step` if the decoding requests take part."""
        batch = self.decodes
        if decodes:
            self.step += 1
        if chunks:
            self.version += 1  # whatever was planned before, this is another batch
        count, lora_tokens, rank_tokens = (batch.count, batch.lora_count, batch.rank_sum) if decodes else (0, 0, 0)
        tokens, prefills = count, []
        for request, new_tokens in chunks:
            prefills.append(Prefill(request.index, request.computed, new_tokens))
            tokens += new_tokens
            if request.adapter:
                lora_tokens += new_tokens
                rank_tokens += new_tokens * request.rank
        self.rank_tokens = rank_tokens
        step_adapters = self.active if decodes and batch.count else _adapters_of(chunks)
        return StepPlan(
            prefills=tuple(prefills),
            decode_count=count,
            decode_context_tokens=batch.context_tokens(self.step) if count else 0,
            num_tokens=tokens,
            num_requests=count + len(chunks),
            num_adapters=len(step_adapters),
            lora_tokens=lora_tokens,
            max_rank=step_adapters.max_rank,
            batch_changed=changed,
            loads=loads,
            max_repeat=max_repeat,
            mix=step_adapters.mix(rank_tokens),
            copying=copying,
            extra_s=extra_s,
        )

    def steps_to_completion(self) -> int:
        """Decode steps from the next one on until, and with, the one in which a request gets its last token."""
        return self.decodes.heap[0][0] - self.step

    def count_load(self, request: Request, tier: int) -> None:
        """An admission found its adapter in a tier (0: on the GPU)."""
        if request.adapter:
            self.tier_counts[tier] += 1
            if tier:
                self.loads_by_rank[request.rank] = self.loads_by_rank.get(request.rank, 0) + 1
                request.load_tier = tier

    # --- what the simulation asks -------------------------------------------------------------------------------

    def commit(self, steps: int, now_s: float) -> Delivery:
        if steps > 1:
            self._extend(steps - 1)
        first, self._first = self._first, []
        retired = self.decodes.retire(self.step + 1) if steps else []
        finished = [self.running.pop(index) for index, _ in retired]
        for request in finished:
            self.version += 1
            self.active.leave(request.adapter)
            self.release(request, now_s)
        return first, finished

    def repeat(self) -> int:
        self._extend(1)
        return self.decodes.context_tokens(self.step)

    def _extend(self, steps: int) -> None:
        self.extend(steps)
        self.step += steps

    def mark_skipped(self, last_plan_s: float) -> None:
        """An engine whose queue keeps its order whatever the scheduler looks at has nothing to do."""
        return

    def num_running(self) -> int:
        return len(self.running)

    def waiting_by_reason(self) -> tuple[int, int, int, int]:
        counts = [0, 0, 0, 0]
        counts[self.blocked] = self.waiting_count()
        return counts[0], counts[1], counts[2], counts[3]

    def state(self, steps: int) -> State:
        free = self.capacity.kv_blocks - self.used_blocks() - self.growth(steps)
        return State(len(self.running), self.waiting_count(), free, frozenset(self.active.requests), 0)

    def growth(self, steps: int) -> int:
        """KV memory that `steps` more steps of the last plan will have taken; 0 where it is reserved at admission."""
        return 0

    def counters(self) -> Counters:
        gpu, host, disk, remote = self.tier_counts
        counts = self.loads_by_rank, self.evictions, self.preemptions, self.num_aborted
        return Counters((gpu, host, disk, remote), *counts)


def _adapters_of(chunks: Sequence[tuple[Request, int]]) -> ActiveAdapters:
    """The adapters of prompts alone."""
    adapters = ActiveAdapters()
    for request, _ in chunks:
        adapters.join(request.adapter, request.rank)
    return adapters
