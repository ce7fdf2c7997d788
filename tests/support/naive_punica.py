"""Punica's loop on one GPU written out plainly: lists, one step after the other, nothing remembered.

The slow twin of PunicaEngine: at most one whole prompt a step with a token for everybody else, oldest first; a request
waits for its adapter's copy without keeping others; out of pages, the newest running request starts over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from support.naive_job import NaiveJob

from simlora.engines.request import Request
from simlora.latency.step import Prefill, StepPlan

INF = float("inf")


@dataclass(eq=False)
class Job(NaiveJob):
    """A request inside the naive engine."""

    generated: int = 0
    kv: int = 0
    buffer: bool = False
    """It holds its adapter's buffer."""


@dataclass
class Settings:
    """Everything that the naive engine needs to know."""

    batch: int
    pages: int
    page: int
    buffers: int
    copy_s: float | None = None
    """Time of a copy beside the steps; None: loads block the step."""
    prefetch: bool = True


class NaivePunica:
    """One GPU."""

    def __init__(self, settings: Settings) -> None:
        self.set = settings
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self.idle: list[int] = []
        """Adapters in buffers that nobody holds, the one let go longest ago first."""
        self.copies: dict[int, float] = {}
        self.fresh: set[int] = set()
        self.evictions = 0

    def pages(self, tokens: int) -> int:
        return -(-tokens // self.set.page)

    @property
    def free(self) -> int:
        return self.set.pages - sum(self.pages(job.kv) for job in self.running)

    def arrive(self, job: Job, now_s: float) -> None:
        self.finish_copies(now_s)
        if self.pages(job.prompt + job.output - 1) > self.set.pages:
            job.rejected = True
            return
        self.waiting.append(job)
        self.give_buffers(now_s)

    def finish_copies(self, now_s: float) -> None:
        self.copies = {adapter: end_s for adapter, end_s in self.copies.items() if end_s > now_s}

    def give_buffers(self, now_s: float) -> None:
        one_by_one = self.set.buffers > 0 and (self.set.copy_s is None or not self.set.prefetch)
        for job in self.waiting:
            if job.buffer:
                if one_by_one:
                    return
                continue
            if job.adapter and self.set.buffers and not self.take_buffer(job.adapter, now_s):
                return
            job.buffer = True
            if one_by_one:
                return

    def take_buffer(self, adapter: int, now_s: float) -> bool:
        used = {job.adapter for job in [*self.waiting, *self.running] if job.buffer} - {0}
        if adapter in used:
            return True
        if adapter in self.idle:
            self.idle.remove(adapter)
            return True
        if len(used) + len(self.idle) == self.set.buffers:
            if not self.idle:
                return False
            del self.idle[0]
            self.evictions += 1
        self.fresh.add(adapter)
        if self.set.copy_s is not None:
            self.copies[adapter] = now_s + self.set.copy_s
        return True

    def let_go(self, job: Job) -> None:
        job.buffer = False
        if job.adapter and all(o.adapter != job.adapter or not o.buffer for o in [*self.waiting, *self.running]):
            self.idle.append(job.adapter)

    def step(self, now_s: float) -> tuple[Job | None, list[Job], list[tuple[int, int, str]]]:
        """(prompt, decodes, loads)."""
        self.finish_copies(now_s)
        while sum(self.pages(job.kv + 1) for job in self.running) > self.set.pages:
            victim = max(self.running, key=lambda job: (job.arrival_s, job.index))
            self.running.remove(victim)
            victim.kv = 0
            victim.preemptions += 1
            self.waiting.append(victim)
            self.waiting.sort(key=lambda job: (job.arrival_s, job.index))
        for job in self.running:
            job.kv += 1
        self.give_buffers(now_s)
        decodes = list(self.running)
        ready = [job for job in self.waiting if job.buffer and job.adapter not in self.copies]
        if (
            not ready
            or len(self.running) == self.set.batch
            or self.pages(ready[0].prompt + ready[0].generated) > self.free
        ):
            return None, decodes, []
        job = ready[0]
        self.waiting.remove(job)
        job.kv = job.prompt + job.generated
        self.running.append(job)
        if job.admitted_s is None:
            job.admitted_s = now_s
        loads = []
        if job.adapter in self.fresh:
            self.fresh.remove(job.adapter)
            job.load_tier = 1
            if self.set.copy_s is None:
                loads.append((job.adapter, job.rank, "host"))
        return job, decodes, loads

    def run(self, requests: Sequence[Request], latency) -> list[Job]:  # type: ignore[no-untyped-def]
        jobs = [Job(r.index, r.adapter, r.rank, r.prompt_tokens, r.output_tokens, r.arrival_s) for r in requests]
        pending, in_s, now_s = deque(jobs), latency.frontend_in_s, 0.0
        self.plans: list[tuple[float, StepPlan]] = []
        while True:
            prompt, decodes, loads = self.step(now_s)
            if prompt is None and not decodes:
                due_s = min(self.copies.values(), default=INF) if self.waiting else INF
                next_s = pending[0].arrival_s + in_s if pending else INF
                if due_s == next_s == INF:
                    return jobs
                now_s = min(due_s, next_s)
                if next_s < due_s:
                    self.arrive(pending.popleft(), now_s)
                continue
            plan = plan_of(prompt, decodes, loads)
            self.plans.append((now_s, plan))
            timing = latency.price(plan)
            gpu_s, host_s = timing.gpu_s, timing.host_s + timing.load_s + timing.sync_s
            end_s = now_s + (
                max(timing.load_s + gpu_s, host_s + timing.tail_s) if timing.launch_bound else host_s + gpu_s
            )
            while pending and pending[0].arrival_s + in_s < end_s:
                job = pending.popleft()
                self.arrive(job, job.arrival_s + in_s)
            now_s = end_s
            for job in [*decodes, *([prompt] if prompt is not None else [])]:
                job.generated += 1
                if job.first_token_s is None:
                    job.first_token_s = now_s + latency.frontend_out_s(0)
            for job in sorted(self.running, key=lambda job: job.index):
                if job.generated == job.output:
                    job.last_token_s = now_s + latency.frontend_out_s(0)
                    self.running.remove(job)
                    self.let_go(job)


def plan_of(prompt: Job | None, decodes: list[Job], loads: list[tuple[int, int, str]]) -> StepPlan:
    jobs = decodes if prompt is None else [*decodes, prompt]
    tokens = 0 if prompt is None else prompt.kv
    lora = sum(job.adapter > 0 for job in decodes) + (tokens if prompt is not None and prompt.adapter else 0)
    return StepPlan(
        () if prompt is None else (Prefill(prompt.index, 0, tokens),), len(decodes), sum(job.kv - 1 for job in decodes),
        tokens + len(decodes), len(jobs), len({job.adapter for job in jobs} - {0}), lora,
        max(job.rank for job in jobs), True, tuple(loads), 1,
    )  # fmt: skip
