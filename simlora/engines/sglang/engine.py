"""SGLang's scheduler with multi-LoRA: policy only, no clock.

Every iteration tries a prefill first and decodes otherwise. A batch that could not take the next request counts as full
until somebody leaves it; who has his last token leaves it at the next decode step, so the queue is looked at one decode
step later. Source: sgl-project/sglang, managers/scheduler.py `get_next_batch_to_run`, `get_new_batch_prefill` and
`update_running_batch`, schedule_batch.py `retract_decode` (2026).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from simlora.engines.base import KV, SEQS, SLOTS, TOKENS, Capacity, Counters
from simlora.engines.overlap_loading import OverlapLoading
from simlora.engines.request import Request
from simlora.engines.sglang.budget import CLIP_NEW_TOKENS, PrefillBudget, TokenRatio
from simlora.engines.sglang.drainer import Drainer
from simlora.engines.sglang.loads import FetchTime, StepAdapters
from simlora.engines.sglang.queue import AdapterQueue, Verdict
from simlora.engines.sglang.slots import Places, SlotPool
from simlora.engines.sync_engine import SyncEngine
from simlora.latency.step import StepPlan

Chunks = list[tuple[Request, int]]


@dataclass(frozen=True)
class SglangLimits:
    """The scheduler's settings after all defaults are resolved; names are SGLang's."""

    max_running_requests: int
    chunked_prefill_size: int
    max_prefill_tokens: int
    kv_tokens: int
    """The KV cache, in tokens: pages hold one."""
    max_loras_per_batch: int
    """Slots, the base model's included; 0 with LoRA off."""
    pinned: frozenset[int] = frozenset()
    enable_mixed_chunk: bool = False


class SglangEngine(SyncEngine):
    """One replica's scheduler, KV accounting and adapter slots."""

    def __init__(
        self,
        limits: SglangLimits,
        ratio: TokenRatio,
        pool: SlotPool | None,
        drainer: Drainer | None = None,
        copies: OverlapLoading | None = None,
        fetch_s: FetchTime | None = None,
    ) -> None:
        """drainer: None without draining. pool, copies and fetch_s: as in StepAdapters."""
        super().__init__(Capacity(limits.kv_tokens, 1, limits.max_loras_per_batch))
        self.limits, self.ratio, self.pool, self.drainer = limits, ratio, pool, drainer
        self.places = Places(max(limits.max_loras_per_batch, 1), limits.pinned)
        self.adapters = StepAdapters(self.places, pool, copies, fetch_s)
        self.tier_counts, self.loads_by_rank = self.adapters.tier_counts, self.adapters.loads_by_rank
        self.queue = AdapterQueue()
        self.free = limits.kv_tokens
        self.partial: Request | None = None
        """The request whose prompt is half computed."""
        self.full = False
        """Nobody else is looked at until somebody leaves."""
        self._left: list[int] = []
        """Adapters of requests that are done, but count until the next decode step."""
        self._prefilled = self._resets = False
        """The last step had prompts; merging them into the running batch makes it not full."""
        self._last_steps = 0
        """Sum over the decoding requests of the step of their last token."""
        self._long: dict[int, Request] = {}
        """Running requests that may have more than CLIP_NEW_TOKENS to come."""
        self._unsettled = False
        """The next iteration may find what this one did not, though nothing happens in between."""
        self._copied = False

    # --- arrivals -----------------------------------------------------------------------------------------------

    def fits(self, request: Request) -> bool:
        """One token is kept in reserve; SGLang cuts the output of longer requests instead."""
        return request.prompt_tokens + request.output_tokens + 1 < self.limits.kv_tokens

    def enqueue(self, request: Request, now_s: float) -> bool:
        self.queue.push(request, now_s)
        if self.pool is not None:
            self.pool.asked(request.adapter)
        conflict = self.adapters.conflicts(request.adapter)
        passed_over = conflict and self.drainer is None and self.adapters.copies is None
        if self._prefilled or not (self.full or passed_over):
            self.arrival_reason = TOKENS
            return True
        self.arrival_reason = SLOTS if conflict else self.blocked
        return False

    # --- planning -----------------------------------------------------------------------------------------------

    def form_step(self, now_s: float) -> StepPlan | None:
        self.preempted, self.aborted = [], []
        if self._prefilled and self._resets:  # the last prompts join the running batch
            self.full = False
        if self.loading:  # the next step does not pay for the last one's loads
            self.version += 1
        self._prefilled = self._unsettled = False
        self.loading = []
        self.adapters.finish(now_s)
        plan = self._next_plan(now_s)
        self.wake_s = self.adapters.next_s
        if self.drainer is not None and self.queue.size and not self.full:
            self.wake_s = min(self.wake_s, self.drainer.next_s(self.queue.oldest_s(), now_s))
        return plan

    def _next_plan(self, now_s: float) -> StepPlan | None:
        while True:
            chunks = self._choose_prompts(now_s)
            if chunks:
                return self._prefill_plan(chunks, now_s)
            if not self.decodes.count and not self._left:
                if not self.queue.size:
                    self.ratio.reset()
                return None
            if self._keep_decodes(now_s):
                return self._decode_plan()

    def _step(self, chunks: Chunks, decodes: bool = True, max_repeat: int = 1) -> StepPlan:
        """The plan, with the loads that it needs."""
        adapters = {request.adapter for request, _ in chunks}
        if decodes:
            adapters.update(self.places.running)
        new = [request for request, _ in chunks if not request.computed]
        self.loading = self.adapters.prepare(adapters, new, self.running.values())
        copying = self.adapters.copying
        if self.loading or copying != self._copied or chunks:
            self.version += 1
        self._copied = copying
        loads, wait_s = self.adapters.loads(self.loading), self.adapters.fetching_s(self.loading)
        steps = 1 if loads else max_repeat
        return self.plan(chunks, steps, decodes, loads, copying=copying, extra_s=wait_s)

    # --- prompts ------------------------------------------------------------------------------------------------

    def _choose_prompts(self, now_s: float) -> Chunks:
        limits, partial, batch = self.limits, self.partial, self.decodes.count + len(self._left)
        room = limits.max_running_requests - batch
        if partial is None:
            if self.full or not self.queue.size:
                return []
            if room <= 0:
                self.full, self.blocked = True, SEQS
                return []
        riding = batch if limits.enable_mixed_chunk else 0
        expected = self.ratio.value * self._expected_tokens()
        budget = PrefillBudget(self.free, expected, riding, limits.max_prefill_tokens, limits.chunked_prefill_size)
        chunks = [] if partial is None else [(partial, budget.go_on(partial))]
        if self.drainer is not None:
            self._unsettled |= self.drainer.update(self.queue.oldest_s(), self._remaining_outputs(), now_s)
        self._admit(chunks, budget, room, now_s)
        return chunks

    def _admit(self, chunks: Chunks, budget: PrefillBudget, room: int, now_s: float) -> None:
        some = self.pool is not None and self.adapters.copies is None and not self.places.room
        adapters = self.places.served() if some else list(self.queue.adapters())
        for request in self.queue.walk(adapters, lambda waiting: self._judge(waiting, now_s)):
            if len(chunks) >= room:
                self.full, self.blocked = True, SEQS
                return
            share = budget.add(request)
            if share.tokens:
                self._start(request, now_s)
                chunks.append((request, share.tokens))
            if share.ends is not None:
                self.blocked = share.ends
                self.full |= share.ends == KV
                # Decodes alone fill the chunk: by the next step it may be memory that is short.
                self._unsettled |= share.ends == TOKENS and not chunks
                return
        self.blocked = SLOTS if self.queue.size else TOKENS

    def _judge(self, request: Request, now_s: float) -> Verdict:
        """Whether the request's adapter lets it into the batch."""
        if self.drainer is not None and not self.drainer.accepts(request):
            return Verdict.SKIP
        return Verdict.TAKE if self.adapters.ready(request, now_s) else Verdict.SKIP_ADAPTER

    def _start(self, request: Request, now_s: float) -> None:
        self.queue.take(request)
        self.admit(request, now_s)
        self.places.join(request.adapter)
        if request.output_tokens > CLIP_NEW_TOKENS:
            self._long[request.index] = request

    def _prefill_plan(self, chunks: Chunks, now_s: float) -> StepPlan:
        batch = self.decodes.count + len(self._left)
        mixed = self.limits.enable_mixed_chunk and batch > 0
        if mixed:
            self._left = []
            self._make_room(sum(tokens for _, tokens in chunks), now_s)
            self.free -= self.decodes.count
        plan = self._step(chunks, decodes=mixed)
        for request, tokens in chunks:
            self.free -= tokens
            request.computed += tokens
            if request.computed == request.prefill_tokens:
                self.complete_prompt(request)
                self._last_steps += request.last_step
        last = chunks[-1][0]
        self.partial = last if last.computed < last.prefill_tokens else None
        self._prefilled, self._resets = True, mixed or not batch or self.partial is not None
        return plan

    def _make_room(self, tokens: int, now_s: float) -> None:
        """Prompts and decodes do not both fit. SGLang runs out of memory there; here decodes are retracted first."""
        if self.decodes.count and self.free < tokens + self.decodes.count:
            self._retract(tokens, 0, now_s)

    # --- decodes ------------------------------------------------------------------------------------------------

    def _keep_decodes(self, now_s: float) -> bool:
        """Let go of those that are done, and retract some if memory is short; False when none remain."""
        shrunk, self._left = bool(self._left), []
        count = self.decodes.count
        if count and self.free < count:
            self._retract(0, 1, now_s)
            shrunk = True
        elif count:
            self.ratio.steps += 1
        if shrunk:
            self.full, self._unsettled = False, True
        return self.decodes.count > 0

    def _decode_plan(self) -> StepPlan:
        steps = 1
        if not (self._unsettled and self.queue.size):
            steps = min(self.steps_to_completion(), self.free // self.decodes.count)
        self.free -= self.decodes.count
        return self._step([], max_repeat=steps)

    def _retract(self, reserve: int, keep: int, now_s: float) -> None:
        """Take requests out, at least one, until the others find a token each beside `reserve`; `keep` stay. Those with
        the fewest generated tokens go first, among them the longest prompt, then the one admitted last."""
        stay = [request for request in self.running.values() if request.computed == request.prefill_tokens]
        stay.sort(key=lambda request: (self._generated(request), -request.prompt_tokens), reverse=True)
        first = True
        while len(stay) > keep and (first or self.free < reserve + len(stay)):
            first = False
            self._take_back(stay.pop(), now_s)
        if len(stay) == keep == 1 and not self.free:
            self._abort(stay.pop())
        self.ratio.retracted((self._generated(request), request.output_tokens) for request in stay)

    def _generated(self, request: Request) -> int:
        return request.emitted + self.step + 1 - request.start_step

    def _take_back(self, request: Request, now_s: float) -> None:
        """Recompute later: all KV is freed, and the request queues up behind everybody."""
        request.emitted = self._generated(request)
        request.recomputed_tokens += self._leave(request)
        request.prefill_tokens = request.prompt_tokens + request.emitted
        request.computed = 0
        request.preemptions += 1
        self.preemptions += 1
        self.preempted.append(request)
        self.queue.push(request, now_s)

    def _abort(self, request: Request) -> None:
        """Not even the last one fits."""
        self._leave(request)
        self.num_aborted += 1
        self.aborted.append(request)

    def _leave(self, request: Request) -> int:
        """Out of the batch; returns the KV tokens that it held."""
        self.version += 1
        self.decodes.remove(request.index)
        del self.running[request.index]
        self.active.leave(request.adapter)
        return self._give_back(request, self.step)

    def _give_back(self, request: Request, step: int) -> int:
        """Free what a request holds after `step`; returns its KV tokens."""
        held = self.blocks_after(request, step)
        self.free += held
        self._last_steps -= request.last_step
        self.places.leave(request.adapter)
        self._long.pop(request.index, None)
        return held

    # --- estimates ----------------------------------------------------------------------------------------------

    def _expected_tokens(self) -> int:
        """Tokens that the decoding requests may still generate, at most CLIP_NEW_TOKENS each."""
        total = self._last_steps - self.step * self.decodes.count
        for request in self._long.values():
            if request.computed == request.prefill_tokens:
                total -= max(request.last_step - self.step - CLIP_NEW_TOKENS, 0)
        return total

    def _remaining_outputs(self) -> dict[int, int]:
        """Adapter in the running batch -> the most tokens that one of its requests has to come."""
        most = dict.fromkeys(self._left, 0)
        for last_step, index in self.decodes.heap:
            adapter = self.running[index].adapter
            most[adapter] = max(most.get(adapter, 0), last_step - self.step)
        return most

    # --- what comes out -----------------------------------------------------------------------------------------

    def release(self, request: Request, now_s: float) -> None:
        self._give_back(request, request.last_step)
        if self._prefilled:
            self._resets = True
        else:
            self._left.append(request.adapter)

    def extend(self, steps: int) -> None:
        self.free -= steps * self.decodes.count
        self.ratio.steps += steps

    def growth(self, steps: int) -> int:
        return steps * self.decodes.count

    def used_blocks(self) -> int:
        return self.limits.kv_tokens - self.free

    def counters(self) -> Counters:
        if self.pool is not None:
            self.evictions = self.pool.evictions
        return super().counters()

    def waiting_count(self) -> int:
        return self.queue.size

    def waiting_by_reason(self) -> tuple[int, int, int, int]:
        counts, size = [0, 0, 0, 0], self.queue.size
        if self.pool is not None and not self.places.room:
            counts[SLOTS] = size - self.queue.waiting_for(self.places.served())
        counts[self.blocked] += size - counts[SLOTS]
        return counts[0], counts[1], counts[2], counts[3]

    def violations(self) -> Iterator[tuple[str, str]]:
        return _violations(self)


def _violations(engine: SglangEngine) -> Iterator[tuple[str, str]]:
    """(invariant, what is wrong)."""
    yield from _tokens(engine)
    yield from _adapters(engine)


def _tokens(engine: SglangEngine) -> Iterator[tuple[str, str]]:
    held = 0
    for request in engine.running.values():
        if request.computed < request.prefill_tokens:
            held += request.computed
        else:
            held += engine.blocks_after(request, max(engine.step, request.start_step))
    total = engine.limits.kv_tokens
    if engine.free < 0:
        yield "INV-3", f"{engine.free} free KV tokens"
    if engine.free + held != total:
        yield "INV-3", f"free {engine.free} + used {held} != {total} KV tokens"
    if len(engine.running) > engine.limits.max_running_requests:
        yield "INV-3", "more running requests than max_running_requests"
    half = [r.index for r in engine.running.values() if r.computed < r.prefill_tokens]
    if half != ([] if engine.partial is None else [engine.partial.index]):
        yield "INV-3", f"half computed prompts {half}"


def _adapters(engine: SglangEngine) -> Iterator[tuple[str, str]]:
    counted = Counter(request.adapter for request in engine.running.values())
    if counted != Counter(engine.places.running):
        yield "INV-4", f"running adapters {engine.places.running}, but the batch holds {dict(counted)}"
    if engine.pool is None:
        return
    if len(counted) > engine.pool.slots:
        yield "INV-4", f"{len(counted)} adapters run"
    for message in engine.pool.check():
        yield "INV-4", message
    copies = engine.adapters.copies
    needed = engine.adapters.step if copies is None else counted.keys()
    for adapter in needed:
        if adapter not in engine.pool or (copies is not None and adapter in copies):
            yield "INV-4", f"adapter {adapter} is in the step but in no slot"
