"""S-LoRA as a state machine: `RouterManager._step` in slora/server/router/manager.py (c1ddf48) and arXiv:2311.03285.

Prompts and decodes never share a step, nothing is preempted, and the queue is looked at rarely: when nobody runs, every
10 ms; otherwise once ten decode steps have passed since the last prefill, and from then on before every step, until
somebody is let in. A prefill holds the newcomers alone.

Decodes are planned many steps at a time. With a queue that is up to the next look; while looks are in vain, up to the
step at which the first waiting request would pass the worst-case test (slora_worst_case.py), since until a request ends
nothing else changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from simlora.engines.base import NEVER_S, SEQS, SLOTS, TOKENS, Capacity, Counters, Delivery
from simlora.engines.request import Request
from simlora.engines.slora.admission import AdapterUnits, Admission, SloraLimits, fits_alone
from simlora.engines.slora.polls import Polls
from simlora.engines.slora.pool import SloraPool
from simlora.engines.slora.queues import Running, SloraQueue, window
from simlora.engines.slora.worst_case import WorstCase, holder, steps_refused
from simlora.engines.sync_engine import Load, SyncEngine
from simlora.latency.step import HOST, StepPlan

MAX_WAIT_STEPS = 10
"""Decode steps after a prefill before the queue is looked at (max_wait_tokens)."""
PREFETCH_AT = (MAX_WAIT_STEPS // 2, MAX_WAIT_STEPS - 3)
"""Decode steps after a prefill at which adapters of waiting requests are looked for ahead."""


class SloraEngine(SyncEngine):
    """One replica."""

    def __init__(
        self, limits: SloraLimits, capacity: Capacity, units: AdapterUnits, queue: SloraQueue, pool: SloraPool
    ) -> None:
        super().__init__(capacity)
        self.limits, self.units, self.queue, self.pool = limits, units, queue, pool
        self.accepted: list[Request] = []
        """Requests let in whose adapters are still on their way, in order."""
        self.worst = WorstCase(limits.unit_tokens)
        """Of the decoding requests."""
        self.wait_steps = 0
        """Decode steps since the last prefill."""
        self._polls = Polls(limits.idle_s)
        self._waiting_then = 0
        """Requests in the queue at the last plan."""
        self._decoding = False
        self._copying, self._planned_version = False, -1

    # --- arrivals -----------------------------------------------------------------------------------------------

    def fits(self, request: Request) -> bool:
        return fits_alone(self.limits, self.units, request)

    def enqueue(self, request: Request, now_s: float) -> bool:
        could_change = self.queue.append(request, now_s)
        unseen = could_change or not self._waiting_then  # the run in progress ends with the step
        self.arrival_reason = TOKENS if unseen else self.blocked
        return could_change

    # --- planning -----------------------------------------------------------------------------------------------

    def form_step(self, now_s: float) -> StepPlan | None:
        self.preempted, self.loading, self.aborted = [], [], []
        self.wake_s, self.blocked = NEVER_S, TOKENS
        self.pool.advance(now_s)
        self.queue.settle()
        if not self.running:
            return self._poll(now_s)
        looks = self.wait_steps >= MAX_WAIT_STEPS
        if looks and (batch := self._look(now_s)):
            return self._prefill(batch, now_s)
        return self._decode(now_s, looks)

    def _poll(self, now_s: float) -> StepPlan | None:
        """Nobody runs: the queue is looked at every 10 ms from the moment that the last one left."""
        due = now_s >= self._polls.due_s
        batch = self._look(now_s) if due else []
        if batch:
            return self._prefill(batch, now_s)
        self._decoding, self._waiting_then = False, len(self.queue)
        self.queue.looked(self._polls.pass_to(now_s), 0)
        if self.waiting_count():
            self.wake_s = self._polls.ask()
        return None

    def _look(self, now_s: float) -> list[Request]:
        """Let in whom the queue offers and the tests allow; those whose adapters are there are the next batch.

        Whoever waits for an adapter comes first and is tested again: the others have grown meanwhile.
        """
        admission, joining = self._admission(), []
        for request in self.accepted:
            if not admission.add(request):
                break
            joining.append(request)
        if len(joining) == len(self.accepted) and admission.num_running < self.limits.running_max_req_size:
            new = self.queue.scan(admission, self._batch(), now_s)
            self._take_in(new, now_s)
            joining += new
            self.aborted = self.queue.take_given_up()
            self.num_aborted += len(self.aborted)
            self.blocked = admission.blocked
        else:
            self.blocked = SEQS if len(joining) == len(self.accepted) else admission.blocked
        ready = {request.index for request in joining if self.pool.ready(request.adapter)}
        batch = [request for request in self.accepted if request.index in ready]
        self.accepted = [request for request in self.accepted if request.index not in ready]
        return batch

    def _take_in(self, requests: list[Request], now_s: float) -> None:
        """Adapters that are there first, so that none of them makes room for another one."""
        for request in sorted(requests, key=lambda request: request.adapter not in self.pool):
            missing = self.pool.acquire(request, now_s)
            self.count_load(request, int(missing or not self.pool.ready(request.adapter)))
        self.accepted += requests

    def _admission(self) -> Admission:
        adapters = {*self.active.requests, *(request.adapter for request in self.accepted if request.adapter)}
        units = sum(self.pool.units_of(adapter) for adapter in adapters)
        return Admission(self.limits, self.units, self.worst, len(self.running), adapters, units, self.step + 1)

    def _prefill(self, batch: list[Request], now_s: float) -> StepPlan:
        loads: list[Load] = []
        for request in batch:
            if request.load_tier and not self.limits.overlap:
                loads.append((request.adapter, request.rank, HOST))
                self.loading.append(request)
            self.admit(request, now_s)
            self.pool.take_kv(self._units_of(request.prefill_tokens), now_s)
        chunks = [(request, request.prefill_tokens) for request in batch]
        plan = self.plan(chunks, decodes=False, loads=tuple(loads), copying=self.pool.copying)
        for request in batch:
            self.complete_prompt(request)
            if request.output_tokens > 1:
                self.worst.add(holder(request))
        self.version += 1
        self.wait_steps, self._decoding = 0, False
        self._waiting_then = len(self.queue)
        return plan

    def _decode(self, now_s: float, looks: bool) -> StepPlan:
        batch = self._batch()
        if self.limits.prefetch and self.wait_steps in PREFETCH_AT and len(self.queue):
            self.pool.prefetch(window(self.queue, self.limits.batch_max_tokens), now_s, self.worst.need())
        steps = self.steps_to_completion()
        if len(self.queue) or self.accepted:
            steps = min(steps, self._steps_of_waiting(looks, steps))
        self.pool.take_kv(self.decodes.growth(self.step + 1), now_s)
        room = self.pool.kv_room()
        if room is not None:
            steps = min(steps, 1 + self.decodes.steps_within(self.step + 2, room))
        self._watch(now_s, looks)
        self.queue.decoded(batch, 1)
        changed, self._planned_version = self.version != self._planned_version, self.version
        plan = self.plan((), max(steps, 1), changed=changed, copying=self._copying)
        self.wait_steps += 1
        self._decoding, self._waiting_then = True, len(self.queue)
        return plan

    def _steps_of_waiting(self, looks: bool, most: int) -> int:
        """Decode steps before the next look at the queue, or ahead of it, can have an effect."""
        if not looks:
            later = [at for at in PREFETCH_AT if at > self.wait_steps] if self.limits.prefetch else []
            return min([*later, MAX_WAIT_STEPS]) - self.wait_steps
        if not self.accepted and (not len(self.queue) or len(self.running) >= self.limits.running_max_req_size):
            return most
        admission, step, last = self._admission(), self.step + 1, self.step + most
        if self.accepted:
            limit = self.limits.kv_limit(admission.adapter_units)
            if admission.add(self.accepted[0]):
                return 1  # adapters arrive within a few steps
            return steps_refused(self.worst, self.accepted[0], step, last, limit) or most
        batch = self._batch()
        bounds = [self.queue.steady_steps(batch) or most]
        for request in self.queue.heads(batch):
            units = admission.units_with(request)
            if self.limits.unified or units <= self.limits.adapter_units:
                limit = self.limits.kv_limit(units)
                bounds.append(steps_refused(self.worst, request, step, last, limit) or most)
        return min(bounds)

    def _watch(self, now_s: float, looks: bool) -> None:
        """When the next plan may differ in the middle of a run: a copy ends, or a request gives up."""
        self.wake_s = self.pool.due_s
        if looks and len(self.running) < self.limits.running_max_req_size:
            self.wake_s = min(self.wake_s, self.queue.give_up_s)
        if self.pool.copying != self._copying:
            self._copying = self.pool.copying
            self.version += 1

    def _batch(self) -> Running:
        return Running(self.active, self.decodes.count - self.decodes.lora_count)

    # --- what came out ------------------------------------------------------------------------------------------

    def commit(self, steps: int, now_s: float) -> Delivery:
        delivery = super().commit(steps, now_s)
        finished = delivery[1]
        if finished and (self._decoding or not self.running):
            self.pool.drop_unused(all_of_them=not self.running)
        if steps and not self.running:
            self._polls.restart(now_s)
        return delivery

    def release(self, request: Request, now_s: float) -> None:
        self.pool.free_kv(self.blocks_after(request, request.last_step))
        self.pool.release(request.adapter, now_s)
        if request.output_tokens > 1:
            self.worst.remove(holder(request))

    def extend(self, steps: int) -> None:
        """Looks in vain included: the queue may count them."""
        if not steps:
            return
        self.queue.decoded(self._batch(), steps)
        looks = self.wait_steps + steps - max(self.wait_steps, MAX_WAIT_STEPS)
        if looks > 0 and len(self.running) < self.limits.running_max_req_size:
            self.queue.looked(looks, self._waiting_then)
        self.wait_steps += steps
        self.pool.take_kv(self.decodes.new_blocks(self.step + 1, steps))

    def growth(self, steps: int) -> int:
        return self.decodes.new_blocks(self.step + 1, steps) if self.decodes.count else 0

    def used_blocks(self) -> int:
        return self.pool.used_kv

    def waiting_count(self) -> int:
        return len(self.queue) + len(self.accepted)

    def waiting_by_reason(self) -> tuple[int, int, int, int]:
        counts = [0, 0, 0, 0]
        counts[self.blocked] = len(self.queue)
        counts[SLOTS] += len(self.accepted)
        return counts[0], counts[1], counts[2], counts[3]

    def counters(self) -> Counters:
        own = super().counters()
        return own._replace(loads_by_rank=self.pool.loads_by_rank, evictions=self.pool.evictions)

    def violations(self) -> Iterator[tuple[str, str]]:
        return _violations(self)

    def _units_of(self, tokens: int) -> int:
        return -(-tokens // self.limits.unit_tokens)


def _violations(engine: SloraEngine) -> Iterator[tuple[str, str]]:
    """(invariant, what is wrong). INV-3: free + KV + adapter units = total, KV as the requests hold it, and enough for
    all of them to run to their end. INV-4: who runs has its adapter in the pool; who was accepted has it there, or on
    its way."""
    limits, pool, step = engine.limits, engine.pool, engine.step
    wrong = pool.check()
    if wrong is not None:
        yield "INV-3", wrong
    held = sum(engine.blocks_after(request, max(step, request.start_step)) for request in engine.running.values())
    if held != pool.used_kv:
        yield "INV-3", f"requests hold {held} units, the pool counts {pool.used_kv}"
    for request in engine.running.values():
        if not pool.ready(request.adapter):
            yield "INV-4", f"request {request.index} runs without adapter {request.adapter}"
    users = Counter(r.adapter for r in (*engine.running.values(), *engine.accepted) if r.adapter)
    if pool.uses() != dict(users):
        yield "INV-4", f"adapters in use {dict(users)}, the pool counts {pool.uses()}"
    limit = limits.kv_limit(sum(pool.units_of(adapter) for adapter in users))
    if engine.running and engine.worst.need() >= limit:
        yield "INV-3", f"the running requests will need {engine.worst.need()} of {limit} units"
    if len(engine.running) + len(engine.accepted) > limits.running_max_req_size:
        yield "INV-4", f"{len(engine.running)} requests run"
