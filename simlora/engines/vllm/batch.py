"""The running batch of one vLLM replica: its requests, their KV blocks and adapter slots, and how they leave.

Decoding requests live in a DecodeBatch, so a step costs no work per token. Because max_num_batched_tokens is at least
max_num_seqs, every decode fits the budget, and at most one prompt is half done: the tail of the running list. A request
is its number in RequestColumns. Who is let in is the scheduler's decision (scheduler.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simlora.engines.active_adapters import ActiveAdapters
from simlora.engines.base import NEVER_S, SLOTS, TOKENS, Capacity, Counters, State
from simlora.engines.decode_batch import DecodeBatch
from simlora.engines.request_columns import RequestColumns
from simlora.engines.vllm.adapter_slots import AdapterSlots
from simlora.engines.vllm.check import violations
from simlora.engines.vllm.kv_blocks import KvBlocks
from simlora.engines.vllm.prefix_cache import PrefixCache
from simlora.engines.vllm.waiting import WaitingQueue
from simlora.memory.residents import AdapterTiers


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


class VllmBatch:
    """Running requests and what they hold."""

    def __init__(
        self,
        limits: VllmLimits,
        requests: RequestColumns,
        tiers: AdapterTiers | None,
        decodes: DecodeBatch | None = None,
        prefix_cache: PrefixCache | None = None,
        ranks: ActiveAdapters | None = None,
    ) -> None:
        """ranks: an empty set of adapters, where the LoRA kernels compute each adapter at its own rank, so that plans
        have to tell them (StepPlan.mix)."""
        self.limits, self.requests, self.ranks = limits, requests, ranks
        self.asynchronous = limits.async_scheduling
        self.capacity = Capacity(limits.kv_blocks, limits.block_size, limits.max_loras)
        self.decodes = decodes or DecodeBatch(limits.block_size)
        self.tokens_per_decode = self.decodes.tokens_per_step
        self.wake_s = NEVER_S
        """After form_step: when the next plan may differ though no request arrives or leaves."""
        self.kv = KvBlocks(limits.kv_blocks, limits.block_size, prefix_cache)
        self.waiting = self._make_queue()
        self.slots = AdapterSlots(limits.max_loras, limits.pinned, tiers, self.waiting)
        self.running: dict[int, None] = {}
        """Requests that count against max_num_seqs, in the order of admission."""
        self.partial = -1
        """The request whose prompt is half computed; -1: none."""
        self.stripped = 0
        """Of those that are finishing, how many have lost their blocks already."""
        self.finishing: list[tuple[int, int]] = []
        """(request, its KV blocks) of those not in the plan any more whose last token is still on the GPU."""
        self.step = -1
        self.version = 0
        """Grows whenever the composition of the planned batch changes, or anything else that its price depends on."""
        self.planned_version = -1
        self.blocked = TOKENS
        self._stands = False
        """Something at the head of the queue, not a slot, kept the last plan from looking at what comes behind."""
        self._walked = False
        """The last plan looked at waiting requests."""
        self.arrival_reason = TOKENS
        """Why the last arrival waits: TOKENS when the next plan may admit it."""
        self.preempted: list[int] = []
        """Decoding requests that the last plan preempted."""
        self.late: list[int] = []
        """Arrivals since the last plan that every plan passes over for want of a slot."""
        self.loading: list[int] = []
        """Requests on whose behalf the last plan loads, in the order of plan.loads."""
        self.rank_tokens = 0
        """Sum over the LoRA tokens of the last plan of their adapter's own rank."""
        self.preemptions = 0
        self.loads_by_rank: dict[int, int] = {}
        """Own rank of a loaded adapter -> loads."""
        self.planned_first: list[int] = []
        self.in_flight_first: list[int] = []

    def _make_queue(self) -> WaitingQueue:
        return WaitingQueue(self.requests.adapter, self.limits.skipped_first)

    # --- what comes out -----------------------------------------------------------------------------------------

    def commit(self, steps: int, now_s: float) -> tuple[list[int], list[int]]:
        """The last plan ran for `steps` steps (0: it was None). What came out while they did, besides one token for
        every decoding request: requests with the first token of their residence, and requests with their last."""
        if self.asynchronous:
            first, self.in_flight_first = self.in_flight_first, self.planned_first
            finished = self.release() if self.finishing else []  # out before the run's second step is planned
            if steps > 1:
                self._extend(steps - 1)
        else:
            first = self.planned_first
            if steps > 1:
                self._extend(steps - 1)
            heap = self.decodes.heap
            if heap and heap[0][0] <= self.step:
                self.retire(self.step + 1, now_s)
            finished = self.release()
        self.planned_first = []
        return first, finished

    def repeat(self) -> int:
        """Plan one more step like the last one; returns the tokens in the KV cache before it."""
        self._extend(1)
        return self.decodes.context_tokens(self.step)

    def _extend(self, steps: int) -> None:
        need = self.decodes.new_blocks(self.step + 1, steps)
        if self.kv.cache is None:
            self.kv.free -= need
        else:
            self.kv.take(need)
        self.step += steps

    def release(self) -> list[int]:
        """The finishing requests have their last token: they do not run any more, and their blocks are free."""
        finished = []
        for request, blocks in self.finishing:
            finished.append(request)
            if request in self.running:  # else it lost its blocks already, see _strip
                del self.running[request]
                self.kv.give_back(request, blocks)
        self.finishing, self.stripped = [], 0
        return finished

    def mark_skipped(self, last_plan_s: float) -> None:
        """The last step of the run was planned at last_plan_s: give the arrivals that came during the run the places in
        the queue that they would have with a plan for each step. Call it before `commit`."""
        for request in self.late:
            if self.requests.routed_s[request] < last_plan_s:
                self.waiting.mark_skipped_through(request)

    def retire(self, step: int, now_s: float) -> None:
        self.version += 1
        adapters, retired = self.requests.adapter, self.decodes.retire(step)
        self.finishing += retired
        for request, _ in retired:
            adapter = adapters[request]
            if adapter:
                self.slots.leave(adapter, now_s)
                if self.ranks is not None:
                    self.ranks.leave(adapter)

    # --- KV pressure --------------------------------------------------------------------------------------------

    def _grow_with_preemption(self, step: int, now_s: float) -> bool:
        """Give every decode its block in list order, preempting the tail while there is none. True: preempted."""
        if self.kv.cache is None:
            return self._preempt_tail(step, now_s)
        order, finishing = list(self.running), dict(self.finishing)
        preempted, position = False, 0
        while position < len(order):
            request = order[position]
            position += 1
            decodes = request != self.partial and request not in finishing
            need = self.decodes.request_growth(request, step) if decodes else 0
            while self.kv.free < need:
                victim = order.pop()
                preempted = True
                if victim in finishing:
                    self._strip(victim, finishing[victim])
                    continue
                self._preempt(victim, step, now_s)
                if victim == request:
                    return True
            self.kv.take(need)
        return preempted

    def _preempt_tail(self, step: int, now_s: float) -> bool:
        """The same where it does not matter in which order blocks are taken and given back."""
        need, preempted, finishing = self.decodes.growth(step), False, dict(self.finishing)
        while need > self.kv.free:
            victim = next(reversed(self.running))
            preempted = True
            if victim in finishing:
                self._strip(victim, finishing[victim])
                continue
            if victim != self.partial:
                need -= self.decodes.request_growth(victim, step)
            self._preempt(victim, step, now_s)
        self.kv.free -= need
        return preempted

    def _strip(self, request: int, blocks: int) -> None:
        """Preempt a request whose last token is on its way: it loses its blocks, and finishes all the same."""
        self.preemptions += 1
        self.requests.preemptions[request] += 1
        del self.running[request]
        self.kv.give_back(request, blocks)
        self.stripped += any(request == other for other, _ in self.finishing)

    def _preempt(self, request: int, step: int, now_s: float) -> None:
        """Recompute later: all KV is freed, the request goes to the front of the queue."""
        self.version += 1
        del self.running[request]
        if request == self.partial:
            self.partial = -1
            computed = self.requests.computed[request]
            self.kv.give_back(request, -(-computed // self.limits.block_size))
            self._forget_progress(request, computed, 0)
        else:
            self._take_out(request, self.decodes, step)
            self.preempted.append(request)
        adapter = self.requests.adapter[request]
        if adapter:
            self.slots.leave(adapter, now_s)
            if self.ranks is not None:
                self.ranks.leave(adapter)
        self.waiting.push_preempted(request)

    def _take_out(self, request: int, decodes: DecodeBatch, step: int) -> None:
        """Free the memory of a decoding request that is not part of `step`."""
        emitted = decodes.emitted(request, step)
        self.kv.give_back(request, decodes.blocks(request, step - 1))
        decodes.remove(request)
        self._forget_progress(request, self.requests.prefill_tokens[request] + emitted - 1, emitted)

    def _forget_progress(self, request: int, computed: int, emitted: int) -> None:
        """computed tokens have to be computed again, of which emitted came out in this residence."""
        requests = self.requests
        self.preemptions += 1
        requests.preemptions[request] += 1
        requests.recomputed_tokens[request] += computed
        requests.emitted[request] += emitted
        requests.prefill_tokens[request] = requests.prompt_tokens[request] + requests.emitted[request]
        requests.computed[request] = 0

    # --- views --------------------------------------------------------------------------------------------------

    def num_running(self) -> int:
        """Requests that neither wait nor are done: those that run, and those stripped of their memory at the end."""
        return len(self.running) + self.stripped

    def _seqs_left(self) -> int:
        """Running requests, those left out that are about to leave."""
        return len(self.running) - sum(request in self.running for request, _ in self.finishing)

    def state(self, steps: int) -> State:
        """The state once `steps` more steps of the last plan have passed."""
        running, free, finishing = len(self.running), self.kv.free, 0
        if steps > 0:
            free -= self.decodes.new_blocks(self.step + 1, steps)
            if self.asynchronous:  # what left the plan was delivered at the run's first boundary
                finishing = len(self.finishing)
                running = self._seqs_left()
                holding = [(request, blocks) for request, blocks in self.finishing if request in self.running]
                free += self.kv.freed_by([request for request, _ in holding], sum(blocks for _, blocks in holding))
        return State(running, self.waiting.size, free, frozenset(self.slots.active), finishing)

    def counters(self) -> Counters:
        """Totals so far."""
        tiers = self.slots.tier_counts
        return Counters(
            (tiers[0], tiers[1], tiers[2], tiers[3]), self.loads_by_rank, self.slots.evictions, self.preemptions
        )

    def violations(self) -> Iterator[tuple[str, str]]:
        """(invariant, what is wrong) for every invariant that does not hold now; recounted from its requests."""
        return violations(self)

    def _skipped(self) -> int:
        """Waiting requests that a plan skips: with every slot taken, all those of other adapters."""
        waiting = self.waiting
        if not waiting.size:
            return 0
        return waiting.size - waiting.active_count if self.slots.full else waiting.held_count

    def waiting_by_reason(self) -> tuple[int, int, int, int]:
        """Waiting requests after the last plan: for slots, KV, sequences, tokens."""
        counts = [0, 0, 0, 0]
        slots = self._skipped()
        counts[SLOTS] = slots
        counts[self.blocked] += self.waiting.size - slots
        return counts[0], counts[1], counts[2], counts[3]
