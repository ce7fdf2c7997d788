"""vLLM V1's scheduler with multi-LoRA: who joins the batch, and what the next step computes. Policy only, no clock.

Follows vllm/v1/core/sched/scheduler.py: running requests first in list order, then the waiting queue under one token
budget. An adapter that finds no slot is skipped; a prompt that finds no KV stops the admission; a decode that finds no
KV block preempts the tail of the running list, and a step that preempted admits nobody.
"""

from __future__ import annotations

from simlora.engines.base import KV, SEQS, SLOTS, TOKENS
from simlora.engines.vllm.adapter_slots import TIER_CODE
from simlora.engines.vllm.batch import VllmBatch
from simlora.latency.step import GPU, Prefill, StepPlan

Load = tuple[int, int, str]
"""(adapter, own rank, tier)."""
record = tuple.__new__
"""Makes a named tuple of its values in a third of the time that calling its class takes."""


class VllmScheduler(VllmBatch):
    """Admission and planning on top of the batch."""

    may_hold_back = False

    @property
    def plain(self) -> bool:
        """A step of decodes alone depends on nothing but the batch and its blocks."""
        return type(self) is VllmScheduler and self.kv.cache is None and self.ranks is None and self.decodes.steady

    # --- arrivals -----------------------------------------------------------------------------------------------

    def fits(self, request: int) -> bool:
        """Whether the request could run alone."""
        requests = self.requests
        blocks = self.decodes.most_blocks(requests.prompt_tokens[request], requests.output_tokens[request])
        return blocks <= self.limits.kv_blocks

    def enqueue(self, request: int, now_s: float) -> bool:
        """Accept an arrival. True when the next plan could differ for it, so that a coalesced run has to end."""
        waiting = self.waiting
        queue_stands = self._stands and waiting.size > 0
        full = len(self.running) >= self.limits.max_num_seqs and self._seqs_left() >= self.limits.max_num_seqs
        conflict = self._conflicts(self.requests.adapter[request])
        waiting.push(request)
        if conflict:
            if not queue_stands and not full:
                self.late.append(request)  # the next plan skips it
            reason = SLOTS
        elif queue_stands and self.blocked != TOKENS:
            reason = self.blocked
        else:
            reason = SEQS if full else TOKENS
        self.arrival_reason = reason
        return reason == TOKENS

    def _conflicts(self, adapter: int) -> bool:
        """The next plan skips a request of this adapter."""
        return self.slots.full and not self.slots.serves(adapter)

    # --- planning -----------------------------------------------------------------------------------------------

    def form_step(self, now_s: float) -> StepPlan | None:
        """Plan the next step, or None when there is nothing to compute now."""
        step = self.step + 1
        decodes = self.decodes
        heap = decodes.heap
        if heap and heap[0][0] < step:
            self.retire(step, now_s)
        if self.preempted:
            self.preempted = []
        if self.late:
            self.late = []
        count = decodes.count
        preempted = False
        if count:
            need = decodes.growth(step)
            if need:
                kv = self.kv
                if need > kv.free:
                    preempted = self._grow_with_preemption(step, now_s)
                elif kv.cache is None:
                    kv.free -= need
                else:
                    kv.take(need)
        if self.waiting.size or self.partial >= 0:
            return self._mixed_plan(step, preempted, now_s)
        return self._decode_plan(step) if count else None

    def loads_for(self, request: int, tier: str) -> tuple[Load, ...]:
        """The step loads the adapter of the one request that it admits, from that tier."""
        self.loading = []
        loads: list[Load] = []
        self._note_load(request, tier, loads)
        return tuple(loads)

    def admitted_all(self) -> None:
        """The step admits all that waited, in the order in which they came."""
        self.version += 1
        self.planned_version = -1
        self.blocked, self._stands, self._walked = TOKENS, False, True
        if self.late:
            self.late = []

    def _decode_plan(self, step: int) -> StepPlan:
        decodes = self.decodes
        count, per_decode, adapters = decodes.count, decodes.tokens_per_step, len(self.slots.active)
        self.step = step
        self.rank_tokens = rank_tokens = decodes.rank_sum * per_decode
        changed, self.planned_version = self.version != self.planned_version, self.version
        mix, rank = None, self.limits.max_lora_rank if adapters else 0
        if self.ranks is not None and adapters:
            mix, rank = self.ranks.mix(rank_tokens), self.ranks.max_rank
        return record(StepPlan, (
            (), count, decodes.context_tokens(step), count * per_decode, count, adapters,
            decodes.lora_count * per_decode, rank, changed, (), self._horizon(step, count) if decodes.steady else 1,
            decodes.emitted_per_step, self._skipped() if self._walked else 0, mix, False, 0.0,
        ))  # fmt: skip

    def _mixed_plan(self, step: int, preempted: bool, now_s: float) -> StepPlan | None:
        decodes = self.decodes
        per_decode, count, context = decodes.tokens_per_step, decodes.count, decodes.context_tokens(step)
        tokens = count * per_decode
        budget = self.limits.max_num_batched_tokens - tokens
        lora_tokens, rank_tokens = decodes.lora_count * per_decode, decodes.rank_sum * per_decode
        chunks: list[tuple[int, int]] = []
        if self.partial >= 0 and not preempted:
            preempted = not self._continue_partial(budget, chunks, step, now_s)
            budget -= chunks[0][1] if chunks else 0
        loads: list[Load] = []
        self._walked = False
        if preempted:
            self.blocked, self._stands = KV, True
        elif self.waiting.size:
            self._admit(budget, chunks, loads, now_s)
        if not chunks:
            if not count:
                return None
            plan = self._decode_plan(step)
            return plan._replace(max_repeat=1) if preempted else plan
        self.step = step
        self.version += 1
        self.planned_version = -1  # the next step maps its tokens to adapters anew
        requests = self.requests
        prefills, computed, ranks, totals = [], requests.computed, requests.rank, requests.prefill_tokens
        for request, chunk in chunks:
            done = computed[request]
            prefills.append(record(Prefill, (request, done, chunk)))
            tokens += chunk
            rank = ranks[request]
            if rank:
                lora_tokens += chunk
                rank_tokens += chunk * rank
            computed[request] = done + chunk  # as in the engine, computed tokens count as soon as they are scheduled
            if done + chunk < totals[request]:
                self._keep_partial(request)
            else:
                self._complete(request, step)
        self.rank_tokens = rank_tokens
        adapters = len(self.slots.active)
        mix, rank = None, self.limits.max_lora_rank if adapters else 0
        if self.ranks is not None and adapters:
            mix, rank = self.ranks.mix(rank_tokens), self.ranks.max_rank
        return record(StepPlan, (
            tuple(prefills), count, context, tokens, count + len(chunks), adapters, lora_tokens, rank,
            True, tuple(loads), 1, decodes.emitted_per_step, self._skipped() if self._walked else 0, mix, False, 0.0,
        ))  # fmt: skip

    def _holds_back(self, request: int, now_s: float) -> bool:
        """Whether a request that could be admitted has to wait for its adapter first; asked where may_hold_back."""
        raise NotImplementedError

    def _continue_partial(self, budget: int, chunks: list[tuple[int, int]], step: int, now_s: float) -> bool:
        request, size = self.partial, self.limits.block_size
        computed = self.requests.computed[request]
        chunk = min(self.requests.prefill_tokens[request] - computed, budget)
        if chunk <= 0:
            return True
        need = -(-(computed + chunk) // size) - -(-computed // size)
        if need > self.kv.free:  # it is the tail of the running list, hence the victim itself
            self._preempt(request, step, now_s)
            return False
        self.kv.take(need)
        chunks.append((request, chunk))
        return True

    def _admit(self, budget: int, chunks: list[tuple[int, int]], loads: list[Load], now_s: float) -> None:
        limits, waiting, kv, slots, running = self.limits, self.waiting, self.kv, self.slots, self.running
        size, max_num_seqs, prefill_tokens = limits.block_size, limits.max_num_seqs, self.requests.prefill_tokens
        self.loading = []
        head = -1
        looked = False
        while waiting.size:
            if len(running) >= max_num_seqs:
                self.blocked = SEQS
                break
            if budget <= 0:
                self.blocked = TOKENS
                break
            head, looked = waiting.head(slots.full), True
            if head < 0:
                self.blocked = SLOTS
                break
            total = prefill_tokens[head]
            cached, fresh_hits = (0, 0) if kv.cache is None else kv.cache.lookup(head)
            shared = cached // size
            chunk = min(total - cached, budget)
            if chunk < total - cached and not limits.enable_chunked_prefill:
                self.blocked = TOKENS
                break
            needed = total if limits.reserve_full_prompt else cached + chunk
            if -(-needed // size) - shared + fresh_hits > kv.free:
                self.blocked = KV
                break
            if self.may_hold_back and self._holds_back(head, now_s):
                continue
            waiting.pop(head)
            if kv.cache is not None:
                kv.free -= kv.cache.acquire(head, cached)
                kv.take(-(-(cached + chunk) // size) - shared)
            else:
                kv.free -= -(-chunk // size)
            self.requests.computed[head] = cached
            self._start(head, loads, now_s)
            chunks.append((head, chunk))
            budget -= chunk
        if not waiting.size:
            self.blocked = TOKENS
        elif looked and (slots.full or waiting.held_count):
            waiting.mark_skipped_before(head)
        self._stands = waiting.size > 0 and self.blocked != SLOTS
        self._walked = looked

    def _start(self, request: int, loads: list[Load], now_s: float) -> None:
        requests = self.requests
        self.running[request] = None
        if requests.admitted_s[request] != requests.admitted_s[request]:
            requests.admitted_s[request] = now_s
            requests.cached_tokens[request] = requests.computed[request]
        if requests.adapter[request]:
            self._join(request, loads, now_s)

    def _join(self, request: int, loads: list[Load], now_s: float) -> None:
        requests, adapter = self.requests, self.requests.adapter[request]
        rank, tier = requests.rank[request], self.slots.join(adapter, now_s)
        if tier != GPU:
            self._note_load(request, tier, loads)
        if self.ranks is not None:
            self.ranks.join(adapter, rank)

    def _note_load(self, request: int, tier: str, loads: list[Load]) -> None:
        requests = self.requests
        rank = requests.rank[request]
        loads.append((requests.adapter[request], rank, tier))
        self.loads_by_rank[rank] = self.loads_by_rank.get(rank, 0) + 1
        self.loading.append(request)
        requests.load_tier[request] = TIER_CODE[tier]

    def _keep_partial(self, request: int) -> None:
        """Its prompt goes on in the next step."""
        self.partial = request

    def _complete(self, request: int, step: int) -> None:
        """The prompt's last token is computed in `step`."""
        if self.partial == request:
            self.partial = -1
        if self.kv.cache is not None:
            self.kv.cache.insert(request)
        requests = self.requests
        left = requests.output_tokens[request] - requests.emitted[request]
        self.decodes.add(request, requests.prefill_tokens[request], left, requests.rank[request], step)
        self.planned_first.append(request)

    def _horizon(self, step: int, count: int) -> int:
        """For how many steps the plan stays what it is, arrivals aside."""
        if self.finishing and self.waiting.size and self.blocked in (KV, SEQS):
            return 1
        decodes = self.decodes
        steps = decodes.heap[0][0] - step + 1
        if count * (steps // decodes.block_size + 1) > self.kv.free:
            steps = min(steps, 1 + decodes.steps_within(step + 1, self.kv.free))
        return steps
