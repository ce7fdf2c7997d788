"""vLLM's scheduler and engine loop with pipeline stages written out plainly: lists, nothing remembered, no lanes.

schedule() walks the running list in order and skips those that have nothing to compute because their token is on its
way; then the waiting requests. The engine loop fills the queue of batches and then waits for the oldest one. Stages are
a list of times at which they become free.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from support.naive_tiers import NaiveTiers

from simlora.engines.request import Request
from simlora.engines.vllm.batch import VllmLimits
from simlora.latency.step import Prefill, StepPlan

TIER_CODE = {"gpu": 0, "host": 1, "disk": 2, "remote": 3}


@dataclass(eq=False)
class Job:
    """A request inside the naive engine."""

    index: int
    adapter: int
    rank: int
    prompt: int
    output: int
    arrival_s: float
    known: int = 0
    on_its_way: bool = False
    """Its next token is being computed."""
    computed: int = 0
    to_prefill: int = 0
    blocks: int = 0
    lost: bool = False
    """Preempted while its token was on its way."""
    rejected: bool = False
    admitted_s: float | None = None
    load_tier: int = 0
    token_s: list[float] = field(default_factory=list)
    first_token_s: float | None = None
    last_token_s: float | None = None
    preemptions: int = 0
    group: int = -1
    """The batches it is in share this number."""

    @property
    def tokens(self) -> int:
        return self.prompt + self.known


@dataclass
class Batch:
    """(job, computed before, new tokens, whether a token comes out), and when it is back."""

    chunks: list[tuple[Job, int, int, bool]] = field(default_factory=list)
    prefills: list[tuple[Job, int, int]] = field(default_factory=list)
    loads: list[tuple[int, int, str]] = field(default_factory=list)
    skipped: int = 0
    group: int = -1
    done_s: float = 0.0


class NaivePipeline:
    """Scheduler, engine loop and stages of one replica."""

    def __init__(self, limits: VllmLimits, latency, tiers: NaiveTiers | None, stages: int) -> None:  # type: ignore[no-untyped-def]
        self.limits, self.latency, self.tiers, self.stages = limits, latency, tiers, stages
        self.running: list[Job] = []
        self.waiting: deque[Job] = deque()
        self.skipped: deque[Job] = deque()
        self.free = limits.kv_blocks
        self.evictions = 0
        self.holders: dict[int, list[Job]] = {}
        """Adapter -> jobs that keep it."""
        self.groups: dict[int, int] = {}
        """Group -> number of its last batch."""
        self.ranks: dict[int, int] = {}
        self.batches = 0
        self.previous: tuple[list[Job], bool] | None = None
        self.plans: list[tuple[float, StepPlan]] = []
        self.stage_s = [0.0] * stages
        self.busy: list[list[tuple[float, float]]] = [[] for _ in range(stages)]
        self.largest_queue = 0

    # --- loop ---------------------------------------------------------------------------------------------------

    def run(self, requests: Sequence[Request]) -> list[Job]:
        jobs = [Job(r.index, r.adapter, r.rank, r.prompt_tokens, r.output_tokens, r.arrival_s) for r in requests]
        pending, queue = deque(jobs), deque[Batch]()
        now_s = 0.0
        while pending or queue or self.waiting or self.skipped or self.running:
            if not (queue or self.waiting or self.skipped or self.running):
                now_s = max(now_s, self._arrives(pending[0]))
                self._arrive(pending)
            batch = self.schedule(now_s) if len(queue) < self.stages else Batch()
            planned_s = now_s
            if batch.chunks:
                planned_s = self._send(batch, now_s)
                queue.append(batch)
                self.largest_queue = max(self.largest_queue, len(queue))
                if len(queue) < self.stages and queue[0].done_s > planned_s:
                    self._arrivals_before(planned_s, pending)
                    now_s = planned_s
                    continue
            if queue:
                now_s = max(queue[0].done_s, planned_s)
                self._arrivals_before(now_s, pending)
                self._back(queue.popleft(), now_s)
        return jobs

    def _arrives(self, job: Job) -> float:
        return job.arrival_s + self.latency.frontend_in_s

    def _arrive(self, pending: deque[Job]) -> None:
        job = pending.popleft()
        if self._blocks(job.prompt + job.output - 1) <= self.limits.kv_blocks:
            self.waiting.append(job)
        else:
            job.rejected = True

    def _arrivals_before(self, end_s: float, pending: deque[Job]) -> None:
        """What ends at the instant of an arrival ends first."""
        while pending and self._arrives(pending[0]) < end_s:
            self._arrive(pending)

    def _send(self, batch: Batch, now_s: float) -> float:
        """Through the stages; returns when the loop has planned it."""
        timing = self.latency.price_stages(self._plan(batch, now_s))
        at_s = now_s
        for index, t in enumerate(timing.stages):
            if index:
                at_s = at_s + timing.transfer_s
            begin_s = max(at_s, self.stage_s[index])
            host = t.host_s + t.load_s + t.sync_s
            duration = max(t.load_s + t.gpu_s, host + t.tail_s) if t.launch_bound else host + t.gpu_s
            at_s = self.stage_s[index] = begin_s + duration
            self.busy[index].append((begin_s, at_s))
        batch.done_s = at_s
        return now_s + timing.stages[0].host_s

    def _back(self, batch: Batch, now_s: float) -> None:
        client_s = now_s + self.latency.frontend_out_s(len(self.running))
        gone = []
        for job, _, _, emits in batch.chunks:
            if not emits:
                continue
            job.on_its_way = False
            job.known += 1
            job.token_s.append(now_s)
            if job.first_token_s is None:
                job.first_token_s = client_s
            if job.known == job.output:
                job.last_token_s = client_s
                gone.append(job)
            elif job.lost:
                self.waiting.appendleft(job)
            job.lost = False
        for job in sorted(gone, key=lambda j: j.index):
            if job in self.running:
                self.running.remove(job)
                self._give_back(job)
            self._drop(job)

    # --- scheduler ----------------------------------------------------------------------------------------------

    def schedule(self, now_s: float) -> Batch:
        out, budget, preempted, held = Batch(), self.limits.max_num_batched_tokens, False, False
        index = 0
        adapters: set[int] = set()
        while index < len(self.running) and budget > 0:
            job = self.running[index]
            index += 1
            new = min(job.tokens - job.computed, budget)
            if new == 0 or job.on_its_way:
                continue
            if job.adapter and not self._has_place(job.adapter, adapters):
                held = True
                break
            before = job.blocks
            while self._blocks(job.computed + new) - before > self.free:
                victim = self.running.pop()
                preempted = True
                self._preempt(victim)
                if victim is job:
                    break
            else:
                self._allocate(job, job.computed + new)
                adapters |= {job.adapter} - {0}
                self._take(job, new, out)
                budget -= new
                continue
            break
        if not preempted and not held:
            self._admit(budget, adapters, out, now_s)
        if out.chunks:
            self._number(out)
            self._load_missing(out)
        return out

    def _admit(self, budget: int, adapters: set[int], out: Batch, now_s: float) -> None:
        limits, passed = self.limits, deque[Job]()
        while (self.skipped or self.waiting) and budget > 0 and len(self.running) < limits.max_num_seqs:
            queue = self.skipped or self.waiting
            job = queue[0]
            if job.adapter and not self._has_place(job.adapter, adapters):
                passed.append(queue.popleft())
                continue
            new = min(job.tokens, budget)
            if job.tokens > budget and not limits.enable_chunked_prefill:
                break
            if limits.reserve_full_prompt and self._blocks(job.tokens) > self.free:
                break
            if self._blocks(new) > self.free:
                break
            queue.popleft()
            self._allocate(job, new)
            self.running.append(job)
            job.to_prefill = job.tokens
            job.admitted_s = now_s if job.admitted_s is None else job.admitted_s
            if job.adapter:
                self._keep(job, adapters, out)
                adapters.add(job.adapter)
            self._take(job, new, out)
            budget -= new
        out.skipped = len(passed)
        (self.skipped if limits.skipped_first else self.waiting).extendleft(reversed(passed))

    def _has_place(self, adapter: int, adapters: set[int]) -> bool:
        pinned = self.limits.pinned
        if adapter in adapters or adapter in pinned:
            return True
        return len(adapters - pinned) < self.limits.max_loras - len(pinned)

    def _take(self, job: Job, new: int, out: Batch) -> None:
        emits = job.computed + new == job.tokens
        out.chunks.append((job, job.computed, new, emits))
        if job.computed < job.to_prefill:
            out.prefills.append((job, job.computed, new))
        job.computed += new
        job.on_its_way = job.on_its_way or emits

    def _number(self, out: Batch) -> None:
        """The batch's decodes were in one batch before, too; the others join them."""
        groups = {job.group for job, computed, _, _ in out.chunks if computed >= job.to_prefill}
        assert len(groups) <= 1
        out.group = groups.pop() if groups else max(self.groups, default=-1) + 1
        self.groups[out.group] = self.batches
        self.batches += 1
        for job, _, _, _ in out.chunks:
            job.group = out.group

    # --- memory -------------------------------------------------------------------------------------------------

    def _preempt(self, job: Job) -> None:
        self._give_back(job)
        job.preemptions += 1
        ends = job.on_its_way and job.known + 1 == job.output
        if not ends:
            job.computed = 0
            self._drop(job)
        if not job.on_its_way:
            self.waiting.appendleft(job)
        elif not ends:
            job.lost = True

    def _allocate(self, job: Job, tokens: int) -> None:
        need = self._blocks(tokens) - job.blocks
        self.free -= need
        job.blocks += need

    def _give_back(self, job: Job) -> None:
        self.free += job.blocks
        job.blocks = 0

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.limits.block_size)

    # --- adapters -----------------------------------------------------------------------------------------------

    def _keep(self, job: Job, adapters: set[int], out: Batch) -> None:
        assert self.tiers is not None
        self.ranks[job.adapter] = job.rank
        keepers = self.holders.setdefault(job.adapter, [])
        keepers.append(job)
        if job.adapter in adapters:
            return
        tier = self._into_slot(job.adapter, {*adapters, job.adapter})
        if tier != "gpu":
            out.loads.append((job.adapter, job.rank, tier))
            job.load_tier = TIER_CODE[tier]

    def _load_missing(self, out: Batch) -> None:
        """Adapters that another batch took the slot of, in the order in which the group got them."""
        batch = {job.adapter for job, _, _, _ in out.chunks} - {0}
        for adapter in sorted(batch):
            assert self.tiers is not None
            if adapter not in self.tiers.slots:
                tier = self._into_slot(adapter, batch)
                out.loads.append((adapter, self.ranks[adapter], tier))

    def _into_slot(self, adapter: int, batch: set[int]) -> str:
        tiers = self.tiers
        assert tiers is not None
        if adapter not in tiers.slots and len(tiers.slots) == tiers.capacity:
            idle = [a for a in tiers.slots if a not in tiers.in_use and a not in tiers.pinned]
            if not idle:
                others = [a for a in tiers.slots if a not in batch and a not in tiers.pinned]
                tiers.release(min(others, key=lambda a: (self._last_batch(a), a)))
        tier, victim = tiers.activate(adapter)
        self.evictions += victim is not None
        return tier

    def _last_batch(self, adapter: int) -> int:
        return max(self.groups[job.group] for job in self.holders[adapter])

    def _drop(self, job: Job) -> None:
        if not job.adapter:
            return
        self.holders[job.adapter].remove(job)
        if not self.holders[job.adapter]:
            assert self.tiers is not None
            if job.adapter in self.tiers.slots:
                self.tiers.release(job.adapter)

    # --- price --------------------------------------------------------------------------------------------------

    def _plan(self, batch: Batch, now_s: float) -> StepPlan:
        jobs = [chunk[0] for chunk in batch.chunks]
        changed = bool(batch.prefills) or self.previous != (jobs, False)
        self.previous = jobs, bool(batch.prefills)
        prefilling = {job for job, _, _ in batch.prefills}
        decodes = [computed for job, computed, _, _ in batch.chunks if job not in prefilling]
        adapters = {job.adapter for job in jobs} - {0}
        plan = StepPlan(
            tuple(Prefill(job.index, start, new) for job, start, new in batch.prefills),
            len(decodes), sum(decodes), sum(new for _, _, new, _ in batch.chunks), len(jobs), len(adapters),
            sum(new for job, _, new, _ in batch.chunks if job.adapter), self.limits.max_lora_rank if adapters else 0,
            changed, tuple(batch.loads), 1, 1.0, batch.skipped,
        )  # fmt: skip
        self.plans.append((now_s, plan))
        return plan
