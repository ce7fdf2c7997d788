"""vLLM V1's scheduler with multi-LoRA: policy only, no clock.

Follows vllm/v1/core/sched/scheduler.py: running requests first in list order, then the waiting queue under one token
budget. An adapter that finds no slot is skipped; a prompt that finds no KV stops the admission; a decode that finds no
KV block preempts the tail of the running list, and a step that preempted admits nobody.

Decoding requests live in a DecodeBatch, so a step costs no work per token. Because max_num_batched_tokens is at least
max_num_seqs, every decode fits the budget, and at most one prompt is half done: the tail of the running list.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simlora.engines.base import KV, NEVER_S, SEQS, SLOTS, TOKENS, Capacity, Counters, Delivery, State
from simlora.engines.decode_batch import DecodeBatch
from simlora.engines.request import Request
from simlora.engines.vllm.adapter_slots import TIER_CODE, AdapterSlots
from simlora.engines.vllm.check import violations
from simlora.engines.vllm.kv_blocks import KvBlocks
from simlora.engines.vllm.prefix_cache import PrefixCache
from simlora.engines.vllm.waiting import WaitingQueue
from simlora.latency.step import GPU, Prefill, StepPlan
from simlora.memory.residents import AdapterTiers

Load = tuple[int, int, str]


@dataclass(frozen=True)
class VllmLimits:
    """The scheduler's settings after all defaults are resolved; names are vLLM's."""

    max_num_seqs: int
    max_num_batched_tokens: int
    kv_blocks: int
    """Usable blocks: num_gpu_blocks - 1, since one is the null block."""
    block_size: int
    max_loras: int
    """0 with LoRA off."""
    max_lora_rank: int
    async_scheduling: bool
    enable_chunked_prefill: bool = True
    reserve_full_prompt: bool = True
    """scheduler_reserve_full_isl: admit only when the whole prompt fits into the free blocks."""
    pinned: frozenset[int] = frozenset()
    skipped_first: bool = True
    """Skipped requests have a queue of their own, which goes first; False: preempted ones go to the very front."""


class VllmEngine:
    """One replica's scheduler, KV accounting and adapter slots."""

    def __init__(
        self,
        limits: VllmLimits,
        tiers: AdapterTiers | None,
        decodes: DecodeBatch | None = None,
        prefix_cache: PrefixCache | None = None,
    ) -> None:
        self.limits = limits
        self.asynchronous = limits.async_scheduling
        self.capacity = Capacity(limits.kv_blocks, limits.block_size, limits.max_loras)
        self.decodes = decodes or DecodeBatch(limits.block_size)
        self.tokens_per_decode = self.decodes.tokens_per_step
        self.wake_s = NEVER_S
        self.aborted: list[Request] = []
        self.kv = KvBlocks(limits.kv_blocks, limits.block_size, prefix_cache)
        self.waiting = WaitingQueue(limits.skipped_first)
        self.slots = AdapterSlots(limits.max_loras, limits.pinned, tiers, self.waiting)
        self.running: dict[int, Request] = {}
        """Requests that hold a seat, in the order of admission."""
        self.partial: Request | None = None
        """The request whose prompt is half computed."""
        self.leaving: list[Request] = []
        """Not in the plan any more, but their last token is still on the GPU: they hold seat and blocks."""
        self.step = -1
        self.version = 0
        self._planned_version = -1
        self.blocked = TOKENS
        self._stands = False
        """Something at the head of the queue, not a slot, kept the last plan from looking at what comes behind."""
        self._walked = False
        """The last plan looked at waiting requests."""
        self.arrival_reason = TOKENS
        """Why the last arrival waits: TOKENS when the next plan may admit it."""
        self.preempted: list[Request] = []
        """Decoding requests that the last plan preempted."""
        self._late: list[Request] = []
        """Arrivals since the last plan that every plan passes over for want of a slot."""
        self.loading: list[Request] = []
        self.rank_tokens = 0
        """Sum over the LoRA tokens of the last plan of their adapter's own rank."""
        self.preemptions = 0
        self.loads_by_rank: dict[int, int] = {}
        """Own rank of a loaded adapter -> loads."""
        self._planned_first: list[Request] = []
        self._in_flight_first: list[Request] = []

    # --- arrivals -----------------------------------------------------------------------------------------------

    def enqueue(self, request: Request, now_s: float) -> bool:
        queue_stands = self._stands and self.waiting.size > 0
        full = len(self.running) - self.leaving_seats() >= self.limits.max_num_seqs
        conflict = self._conflicts(request.adapter)
        self.waiting.push(request)
        if conflict and not queue_stands and not full:
            self._late.append(request)  # the next plan passes it over
        if conflict:
            self.arrival_reason = SLOTS
        elif queue_stands and self.blocked != TOKENS:
            self.arrival_reason = self.blocked
        else:
            self.arrival_reason = SEQS if full else TOKENS
        return self.arrival_reason == TOKENS

    def _conflicts(self, adapter: int) -> bool:
        """The next plan passes a request of this adapter over."""
        return self.slots.full and not self.slots.serves(adapter)

    def fits(self, request: Request) -> bool:
        """Whether the request could run alone."""
        return self.decodes.most_blocks(request.prompt_tokens, request.output_tokens) <= self.limits.kv_blocks

    # --- planning -----------------------------------------------------------------------------------------------

    def form_step(self, now_s: float) -> StepPlan | None:
        step = self.step + 1
        decodes = self.decodes
        heap = decodes.heap
        if heap and heap[0][0] < step:
            self._retire(step, now_s)
        if self.preempted:
            self.preempted = []
        if self._late:
            self._late = []
        count = decodes.count
        preempted = False
        if count:
            need = decodes.growth(step)
            if need:
                if need > self.kv.free:
                    preempted = self._grow_with_preemption(step, now_s)
                else:
                    self.kv.take(need)
        if self.waiting.size or self.partial is not None:
            return self._mixed_plan(step, preempted, now_s)
        return self._decode_plan(step) if count else None

    def _decode_plan(self, step: int) -> StepPlan:
        decodes = self.decodes
        count, per_decode, adapters = decodes.count, decodes.tokens_per_step, len(self.slots.active)
        self.step = step
        self.rank_tokens = decodes.rank_sum * per_decode
        changed, self._planned_version = self.version != self._planned_version, self.version
        return StepPlan(
            (), count, decodes.context_tokens(step), count * per_decode, count, adapters,
            decodes.lora_count * per_decode, self.limits.max_lora_rank if adapters else 0, changed, (),
            self._horizon(step, count) if decodes.steady else 1, decodes.emitted_per_step, self._skipped(),
        )  # fmt: skip

    def _mixed_plan(self, step: int, preempted: bool, now_s: float) -> StepPlan | None:
        decodes = self.decodes
        per_decode, count, context = decodes.tokens_per_step, decodes.count, decodes.context_tokens(step)
        budget = self.limits.max_num_batched_tokens - count * per_decode
        lora_tokens, rank_tokens = decodes.lora_count * per_decode, decodes.rank_sum * per_decode
        chunks: list[tuple[Request, int]] = []
        if self.partial is not None and not preempted:
            preempted = not self._continue_partial(budget, chunks, step, now_s)
            budget -= chunks[0][1] if chunks else 0
        loads: tuple[Load, ...] = ()
        self._walked = False
        if preempted:
            self.blocked, self._stands = KV, True
        elif self.waiting.size:
            loads = self._admit(budget, chunks, now_s)
        if not chunks:
            if not count:
                return None
            plan = self._decode_plan(step)
            return plan._replace(max_repeat=1) if preempted else plan
        self.step = step
        self.version += 1
        self._planned_version = -1  # the next step maps its tokens to adapters anew
        prefills, tokens = [], count * per_decode
        for request, chunk in chunks:
            prefills.append(Prefill(request.index, request.computed, chunk))
            tokens += chunk
            if request.adapter:
                lora_tokens += chunk
                rank_tokens += chunk * request.rank
            self._compute(request, chunk, step)
        self.rank_tokens = rank_tokens
        rank = self.limits.max_lora_rank if self.slots.active else 0
        return StepPlan(
            tuple(prefills), count, context, tokens, count + len(chunks), len(self.slots.active), lora_tokens, rank,
            True, loads, 1, decodes.emitted_per_step, self._skipped(),
        )  # fmt: skip

    def _skipped(self) -> int:
        """Waiting requests that the last plan walked past."""
        return self._without_slot() if self._walked else 0

    def _without_slot(self) -> int:
        """With every slot taken, no waiting request of another adapter can be admitted."""
        return self.waiting.size - self.waiting.active_count if self.slots.full else self.waiting.held_count

    def _holds_back(self, request: Request, now_s: float) -> bool:
        """Whether a request that could be admitted has to wait for its adapter first."""
        return False

    def _continue_partial(self, budget: int, chunks: list[tuple[Request, int]], step: int, now_s: float) -> bool:
        request = self.partial
        assert request is not None
        chunk = min(request.prefill_tokens - request.computed, budget)
        if chunk <= 0:
            return True
        size = self.limits.block_size
        need = -(-(request.computed + chunk) // size) - -(-request.computed // size)
        if need > self.kv.free:  # it is the tail of the running list, hence the victim itself
            self._preempt(request, step, now_s)
            return False
        self.kv.take(need)
        chunks.append((request, chunk))
        return True

    def _admit(self, budget: int, chunks: list[tuple[Request, int]], now_s: float) -> tuple[Load, ...]:
        limits, waiting, size = self.limits, self.waiting, self.limits.block_size
        loads: list[Load] = []
        self.loading = []
        head: Request | None = None
        looked = False
        while waiting.size:
            if len(self.running) >= limits.max_num_seqs:
                self.blocked = SEQS
                break
            if budget <= 0:
                self.blocked = TOKENS
                break
            head, looked = waiting.head(self.slots.full), True
            if head is None:
                self.blocked = SLOTS
                break
            total = head.prefill_tokens
            cached, fresh_hits = self.kv.cached(head)
            shared = cached // size
            chunk = min(total - cached, budget)
            if chunk < total - cached and not limits.enable_chunked_prefill:
                self.blocked = TOKENS
                break
            needed = total if limits.reserve_full_prompt else cached + chunk
            if -(-needed // size) - shared + fresh_hits > self.kv.free:
                self.blocked = KV
                break
            if self._holds_back(head, now_s):
                continue
            waiting.pop(head)
            self.kv.admit(head, cached, cached + chunk)
            head.computed = cached
            self._start(head, loads, now_s)
            chunks.append((head, chunk))
            budget -= chunk
        if not waiting.size:
            self.blocked = TOKENS
        elif looked and (self.slots.full or waiting.held_count):
            waiting.mark_skipped_before(head)
        self._stands = waiting.size > 0 and self.blocked != SLOTS
        self._walked = looked
        return tuple(loads)

    def _start(self, request: Request, loads: list[Load], now_s: float) -> None:
        self.running[request.index] = request
        if request.admitted_s != request.admitted_s:
            request.admitted_s = now_s
            request.cached_tokens = request.computed
        adapter = request.adapter
        if not adapter:
            return
        tier = self.slots.join(adapter, now_s)
        if tier != GPU:
            loads.append((adapter, request.rank, tier))
            self.loads_by_rank[request.rank] = self.loads_by_rank.get(request.rank, 0) + 1
            self.loading.append(request)
            request.load_tier = TIER_CODE[tier]

    def _compute(self, request: Request, chunk: int, step: int) -> None:
        """Advance a prompt; as in the engine, computed tokens count as soon as they are scheduled."""
        request.computed += chunk
        if request.computed < request.prefill_tokens:
            self.partial = request
            return
        if self.partial is request:
            self.partial = None
        self.kv.prompt_done(request)
        self.decodes.add(request, step)
        self._planned_first.append(request)

    def _horizon(self, step: int, count: int) -> int:
        """For how many steps the plan stays what it is, arrivals aside."""
        if self.leaving and self.waiting.size and self.blocked in (KV, SEQS):
            return 1
        decodes = self.decodes
        steps = decodes.heap[0][0] - step + 1
        if count * (steps // decodes.block_size + 1) > self.kv.free:
            steps = min(steps, 1 + decodes.steps_within(step + 1, self.kv.free))
        return steps

    # --- what comes out -----------------------------------------------------------------------------------------

    def commit(self, steps: int, now_s: float) -> Delivery:
        if self.limits.async_scheduling:
            first, self._in_flight_first = self._in_flight_first, self._planned_first
            finished = self._release()  # out at the run's first boundary, before its second step is planned
            self._extend(steps - 1)
        else:
            first = self._planned_first
            self._extend(steps - 1)
            heap = self.decodes.heap
            if heap and heap[0][0] <= self.step:
                self._retire(self.step + 1, now_s)
            finished = self._release()
        self._planned_first = []
        return first, finished

    def repeat(self) -> int:
        """Plan one more step like the last one; returns the tokens in the KV cache before it."""
        self._extend(1)
        return self.decodes.context_tokens(self.step)

    def _extend(self, steps: int) -> None:
        if steps > 0:
            self.kv.take(self.decodes.new_blocks(self.step + 1, steps))
            self.step += steps

    def _release(self) -> list[Request]:
        """The leaving requests have their last token: seats and blocks are free."""
        finished, self.leaving = self.leaving, []
        for request in finished:
            if request.index in self.running:  # else it lost them already, see _strip
                del self.running[request.index]
                self.kv.give_back(request, self.decodes.blocks(request, request.last_step))
        return finished

    def pass_over(self, last_plan_s: float) -> None:
        for request in self._late:
            if request.routed_s < last_plan_s:
                self.waiting.mark_skipped_through(request)

    def _retire(self, step: int, now_s: float) -> None:
        self.version += 1
        for request in self.decodes.retire(step):
            self.leaving.append(request)
            if request.adapter:
                self.slots.leave(request.adapter, now_s)

    # --- KV pressure --------------------------------------------------------------------------------------------

    def _grow_with_preemption(self, step: int, now_s: float) -> bool:
        """Give every decode its block in list order, preempting the tail while there is none. True: preempted."""
        order = list(self.running.values())
        leaving = {id(r) for r in self.leaving}
        preempted, position = False, 0
        while position < len(order):
            request = order[position]
            position += 1
            need = (
                0 if request is self.partial or id(request) in leaving else self.decodes.request_growth(request, step)
            )
            while self.kv.free < need:
                victim = order.pop()
                preempted = True
                if id(victim) in leaving:
                    self._strip(victim)
                    continue
                self._preempt(victim, step, now_s)
                if victim is request:
                    return True
            self.kv.take(need)
        return preempted

    def _strip(self, request: Request) -> None:
        """Preempt a request whose last token is on its way: it loses seat and blocks, and finishes all the same."""
        self.preemptions += 1
        request.preemptions += 1
        del self.running[request.index]
        self.kv.give_back(request, self.decodes.blocks(request, request.last_step))

    def _preempt(self, request: Request, step: int, now_s: float) -> None:
        """Recompute later: all KV is freed, the request goes to the front of the queue."""
        self.version += 1
        self.preemptions += 1
        request.preemptions += 1
        del self.running[request.index]
        if request is self.partial:
            self.partial = None
            request.recomputed_tokens += request.computed
            self.kv.give_back(request, -(-request.computed // self.limits.block_size))
        else:
            emitted = self.decodes.emitted(request, step)
            self.kv.give_back(request, self.decodes.blocks(request, step - 1))
            self.decodes.remove(request)
            request.recomputed_tokens += request.prefill_tokens + emitted - 1
            request.emitted += emitted
            self.preempted.append(request)
        request.prefill_tokens = request.prompt_tokens + request.emitted
        request.computed = 0
        if request.adapter:
            self.slots.leave(request.adapter, now_s)
        self.waiting.push_preempted(request)

    # --- views --------------------------------------------------------------------------------------------------

    def inside(self) -> int:
        """Requests that are neither waiting nor done: those with a seat, and those stripped of it."""
        return len(self.running) + (len(self.leaving) - self.leaving_seats() if self.leaving else 0)

    def leaving_seats(self) -> int:
        """Seats that become free when the last tokens of the leaving requests are out."""
        return sum(request.index in self.running for request in self.leaving)

    def leaving_blocks(self) -> int:
        """KV blocks that become free then."""
        holding = [request for request in self.leaving if request.index in self.running]
        return self.kv.freed_by(holding, sum(self.decodes.blocks(r, r.last_step) for r in holding))

    def used_blocks(self) -> int:
        return self.kv.total - self.kv.free

    def leaving_count(self) -> int:
        return len(self.leaving)

    def waiting_count(self) -> int:
        return self.waiting.size

    def state(self, steps: int) -> State:
        running, free, leaving = len(self.running), self.kv.free, 0
        if steps > 0:
            free -= self.decodes.new_blocks(self.step + 1, steps)
            if self.asynchronous:  # what left the plan was delivered at the run's first boundary
                leaving = len(self.leaving)
                running -= self.leaving_seats()
                free += self.leaving_blocks()
        return State(running, self.waiting.size, free, frozenset(self.slots.active), leaving)

    def counters(self) -> Counters:
        tiers = self.slots.tier_counts
        return Counters(
            (tiers[0], tiers[1], tiers[2], tiers[3]), self.loads_by_rank, self.slots.evictions, self.preemptions
        )

    def violations(self) -> Iterator[tuple[str, str]]:
        return violations(self)

    def waiting_by_reason(self) -> tuple[int, int, int, int]:
        counts = [0, 0, 0, 0]
        slots = self._without_slot()
        counts[SLOTS] = slots
        counts[self.blocked] += self.waiting.size - slots
        return counts[0], counts[1], counts[2], counts[3]
