"""vLLM V1's scheduler and its engine loop written out plainly: lists, one loop per step, nothing remembered.

The slow twin of VllmEngine, Replica and Epoch. schedule() walks the running list in order, then the skipped and the
waiting requests; update() is the output of a step coming back. With asynchronous scheduling the output of step i comes
back after step i + 1 was scheduled, so a scheduled request carries a placeholder for the token it does not know yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from support.naive_job import NaiveJob
from support.naive_tiers import NaiveTiers

from simlora.engines.request import Request
from simlora.engines.vllm.batch import VllmLimits
from simlora.latency.step import Prefill, StepPlan, StepTiming

TIER_CODE = {"gpu": 0, "host": 1, "disk": 2, "remote": 3}


@dataclass(eq=False)
class Job(NaiveJob):
    """A request inside the naive engine."""

    known: int = 0
    """Output tokens that came back."""
    placeholders: int = 0
    """Output tokens scheduled but not back yet."""
    computed: int = 0
    to_prefill: int = 0
    """Tokens known at admission: below that, computed tokens are a prefill."""
    blocks: int = 0
    token_s: list[float] = field(default_factory=list)
    """When each output token left the engine."""

    @property
    def tokens(self) -> int:
        return self.prompt + self.known


@dataclass
class Scheduled:
    """What one call of schedule() decided: (job, computed tokens before, new tokens, does it emit a token)."""

    chunks: list[tuple[Job, int, int, bool]] = field(default_factory=list)
    prefills: list[tuple[Job, int, int]] = field(default_factory=list)
    loads: list[tuple[int, int, str]] = field(default_factory=list)
    skipped: int = 0
    """Waiting requests passed over for want of a slot."""


class NaiveVllm:
    """The scheduler. Pinned adapters keep a slot each whether they are in the step or not."""

    def __init__(self, limits: VllmLimits, tiers: NaiveTiers | None) -> None:
        self.limits, self.tiers = limits, tiers
        self.running: list[Job] = []
        self.waiting: deque[Job] = deque()
        self.skipped: deque[Job] = deque()
        self.free = limits.kv_blocks
        self.in_step: list[Job] = []
        self.evictions = 0

    def fits(self, job: Job) -> bool:
        return self._blocks(job.prompt + job.output - 1) <= self.limits.kv_blocks

    def schedule(self, now_s: float) -> Scheduled:
        out, budget = Scheduled(), self.limits.max_num_batched_tokens
        preempted: list[Job] = []
        index = 0
        while index < len(self.running) and budget > 0:
            job = self.running[index]
            last_token_scheduled = job.computed + 2 - job.placeholders >= job.prompt + job.output
            if job.placeholders > 0 and last_token_scheduled:
                index += 1
                continue
            new = min(job.tokens + job.placeholders - job.computed, budget)
            while not (fits := self._allocate(job, job.computed + new)):
                victim = self.running.pop()
                self._preempt(victim)
                preempted.append(victim)
                if victim is job:
                    break
            if not fits:
                break
            self._take(job, new, out)
            budget -= new
            index += 1
        self._release_adapters([chunk[0] for chunk in out.chunks], preempted)
        if not preempted:
            self._admit(budget, out, now_s)
        self.in_step = [chunk[0] for chunk in out.chunks]
        for job, _, _, emits in out.chunks:
            job.placeholders += emits
        return out

    def update(self, chunks: Sequence[tuple[Job, int, int, bool]]) -> list[Job]:
        """The output of a step is back; returns the jobs that got a token, in order."""
        emitted = []
        for job, _, _, emits in chunks:
            if not emits:
                continue
            job.placeholders -= 1
            job.known += 1
            emitted.append(job)
            if job.known == job.output:
                for queue in (self.running, self.waiting, self.skipped):
                    if job in queue:
                        queue.remove(job)
                self._free(job)
        return emitted

    def finish_step(self, chunks: Sequence[tuple[Job, int, int, bool]]) -> None:
        """Without asynchronous scheduling the worker sees a request leave as soon as its step is over."""
        self._release_adapters([chunk[0] for chunk in chunks if chunk[0] in self.running], [])

    def _admit(self, budget: int, out: Scheduled, now_s: float) -> None:
        limits = self.limits
        adapters = {chunk[0].adapter for chunk in out.chunks} - {0}
        skipped: deque[Job] = deque()
        while (self.skipped or self.waiting) and budget > 0:
            if len(self.running) == limits.max_num_seqs:
                break
            queue = self.skipped or self.waiting
            job = queue[0]
            if job.adapter and not self._has_slot(job.adapter, adapters):
                skipped.append(queue.popleft())
                continue
            total = job.tokens
            if total > budget and not limits.enable_chunked_prefill:
                break
            new = min(total, budget)
            if limits.reserve_full_prompt and self._blocks(total) > self.free:
                break
            if not self._allocate(job, new):
                break
            queue.popleft()
            self.running.append(job)
            job.to_prefill = total
            if job.admitted_s is None:
                job.admitted_s = now_s
            if job.adapter:
                self._load(job, adapters, out)
                adapters.add(job.adapter)
            self._take(job, new, out)
            budget -= new
        out.skipped = len(skipped)
        (self.skipped if limits.skipped_first else self.waiting).extendleft(reversed(skipped))

    def _has_slot(self, adapter: int, adapters: set[int]) -> bool:
        pinned = self.limits.pinned
        if adapter in adapters or adapter in pinned:
            return True
        return len(adapters - pinned) < self.limits.max_loras - len(pinned)

    def _take(self, job: Job, new: int, out: Scheduled) -> None:
        emits = job.computed + new == job.tokens + job.placeholders
        out.chunks.append((job, job.computed, new, emits))
        if job.computed < job.to_prefill:
            out.prefills.append((job, job.computed, new))
        job.computed += new

    def _load(self, job: Job, adapters: set[int], out: Scheduled) -> None:
        assert self.tiers is not None
        if job.adapter in adapters:
            return
        tier, victim = self.tiers.activate(job.adapter)
        self.evictions += victim is not None
        if tier != "gpu":
            out.loads.append((job.adapter, job.rank, tier))
            job.load_tier = TIER_CODE[tier]

    def _release_adapters(self, still: list[Job], preempted: list[Job]) -> None:
        """Adapters that left the step were used last in the step before: oldest first by who left first."""
        gone = sorted((j for j in self.in_step if j not in still and j not in preempted), key=lambda j: j.index)
        left = {job.adapter for job in still} - {0}
        leaving = [j.adapter for j in [*gone, *(p for p in preempted if p in self.in_step)] if j.adapter]
        for position, adapter in enumerate(leaving):
            if adapter not in left and adapter not in leaving[position + 1 :]:
                assert self.tiers is not None
                self.tiers.release(adapter)
        self.in_step = list(still)

    def _preempt(self, job: Job) -> None:
        self._free(job)
        job.computed = 0
        job.preemptions += 1
        self.waiting.appendleft(job)

    def _allocate(self, job: Job, tokens: int) -> bool:
        need = self._blocks(tokens) - job.blocks
        if need > self.free:
            return False
        self.free -= need
        job.blocks += need
        return True

    def _free(self, job: Job) -> None:
        self.free += job.blocks
        job.blocks = 0

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.limits.block_size)


class NaiveReplica:
    """Plays requests through one engine, step by step."""

    def __init__(self, limits: VllmLimits, latency, tiers: NaiveTiers | None) -> None:  # type: ignore[no-untyped-def]
        self.engine = NaiveVllm(limits, tiers)
        self.limits, self.latency = limits, latency
        self.plans: list[tuple[float, StepPlan]] = []
        self._batch: list[Job] | None = None

    def run(self, requests: Sequence[Request]) -> list[Job]:
        jobs = [Job(r.index, r.adapter, r.rank, r.prompt_tokens, r.output_tokens, r.arrival_s) for r in requests]
        pending = deque(jobs)
        play = self._asynchronous if self.limits.async_scheduling else self._alternating
        now_s = 0.0
        while pending:
            now_s = self._arrive(pending)  # the engine is idle, so the first arrival wakes it
            if self.engine.waiting:
                play(now_s, pending)
        return jobs

    def _arrive(self, pending: deque[Job]) -> float:
        job = pending.popleft()
        if self.engine.fits(job):
            self.engine.waiting.append(job)
        else:
            job.rejected = True
        return job.arrival_s + self.latency.frontend_in_s

    def _arrivals_before(self, end_s: float, pending: deque[Job]) -> None:
        """A step that ends at the instant of an arrival ends first."""
        while pending and pending[0].arrival_s + self.latency.frontend_in_s < end_s:
            self._arrive(pending)

    def _asynchronous(self, c: float, pending: deque[Job]) -> None:
        """c: when the CPU begins an iteration; e: when the GPU finishes the step in flight."""
        e, flying = c, None
        while True:
            step = self.engine.schedule(c)
            running = len(self.engine.running)
            if not step.chunks:
                if flying is None:
                    return
                self._arrivals_before(e, pending)
                self._deliver(flying, e, running)
                c, flying = e, None
                continue
            t = self._price(step, c)
            ready = c + t.host_s + t.load_s
            if t.sync_s:
                ready = max(e, ready)
                host_end = ready + t.sync_s
                end = max(ready + t.gpu_s, host_end + t.tail_s) if t.launch_bound else host_end + t.gpu_s
            else:
                host_end = max(e, ready)
                end = max(max(e, c + t.load_s) + t.gpu_s, ready + t.tail_s) if t.launch_bound else host_end + t.gpu_s
            self._arrivals_before(host_end, pending)
            if flying is not None:
                self._deliver(flying, host_end, running)
            c, e, flying = host_end, end, step

    def _alternating(self, now_s: float, pending: deque[Job]) -> None:
        while True:
            step = self.engine.schedule(now_s)
            if not step.chunks:
                return
            t = self._price(step, now_s)
            host = t.host_s + t.load_s + t.sync_s
            duration = max(t.load_s + t.gpu_s, host + t.tail_s) if t.launch_bound else host + t.gpu_s
            running = len(self.engine.running)
            now_s += duration
            self._arrivals_before(now_s, pending)
            self._deliver(step, now_s, running)
            self.engine.finish_step(step.chunks)

    def _deliver(self, step: Scheduled, now_s: float, running: int) -> None:
        client_s = now_s + self.latency.frontend_out_s(running)
        for job in self.engine.update(step.chunks):
            job.token_s.append(now_s)
            if job.first_token_s is None:
                job.first_token_s = client_s
            if job.known == job.output:
                job.last_token_s = client_s

    def _price(self, step: Scheduled, now_s: float) -> StepTiming:
        """The batch is unchanged when the same requests decode as in the step before."""
        batch = [chunk[0] for chunk in step.chunks]
        changed = bool(step.prefills) or batch != self._batch
        self._batch = None if step.prefills else batch
        prefilling = {job for job, _, _ in step.prefills}
        decodes = [(job, computed) for job, computed, _, _ in step.chunks if job not in prefilling]
        adapters = {job.adapter for job in batch} - {0}
        tokens = sum(new for _, _, new, _ in step.chunks)
        lora_tokens = sum(new for job, _, new, _ in step.chunks if job.adapter)
        plan = StepPlan(
            tuple(Prefill(job.index, start, new) for job, start, new in step.prefills),
            len(decodes), sum(computed for _, computed in decodes), tokens, len(batch),
            len(adapters), lora_tokens, self.limits.max_lora_rank if adapters else 0, changed, tuple(step.loads), 1,
            1.0, step.skipped,
        )  # fmt: skip
        self.plans.append((now_s, plan))
        return self.latency.price(plan)
