"""SGLang's scheduler loop written out plainly: lists, one iteration after the other, nothing remembered.

The slow twin of SglangEngine, from managers/scheduler.py, schedule_policy.py, schedule_batch.py, lora/mem_pool.py,
lora_drainer.py and lora_overlap_loader.py: requests that are done stay in the running batch until a decode step filters
it, and a batch that is full is not offered anything until it shrinks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from support.naive_job import NaiveJob

from simlora.engines.request import Request
from simlora.latency.step import Prefill, StepPlan

CLIP = 4096
CODE = {"gpu": 0, "host": 1, "disk": 2, "remote": 3}


def scattered(adapter: int) -> int:
    """The order in which the adapters of a step are looked at: as good as any."""
    return adapter * 2654435761 % 2**32


@dataclass(eq=False)
class Job(NaiveJob):
    """A request inside the naive engine."""

    generated: int = 0
    computed: int = 0
    kv: int = 0
    turn: int = 0
    """Number of its last admission."""
    queued_s: float = 0.0

    @property
    def done(self) -> bool:
        return self.generated == self.output

    @property
    def to_prefill(self) -> int:
        return self.prompt + self.generated


@dataclass
class Batch:
    """A step: prompt chunks and decodes."""

    chunks: list[tuple[Job, int]]
    decodes: list[Job]
    loads: list[tuple[int, int, str]] = field(default_factory=list)


@dataclass
class Settings:
    """Everything that the naive engine needs to know."""

    running: int
    chunk: int
    prefill: int
    kv: int
    slots: int
    pinned: frozenset[int] = frozenset()
    mixed: bool = False
    ratio: float = 0.7
    floor: float = 0.098
    decay: float = 0.602 / 600
    policy: str = "lru"
    host: int | None = None
    remote: bool = False
    drain_s: float = 0.0
    copy_s: dict[str, float] | None = None
    """Overlapped loading: time of a copy from each tier; None: loads block the batch."""


class NaiveSglang:
    """One replica."""

    def __init__(self, settings: Settings) -> None:
        self.set = settings
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self.last: Batch | None = None
        self.full = False
        self.chunked: Job | None = None
        self.free = settings.kv
        self.start, self.decays = settings.ratio, 0
        self.slots: list[int] = [0, *sorted(settings.pinned)]
        """Next victim first."""
        self.memory: list[int] = sorted(settings.pinned)
        """Adapters in host memory, next victim first."""
        self.on_disk = set(settings.pinned)
        self.copies: dict[int, float] = {}
        self.fresh: dict[int, str] = {}
        self.draining: dict[int, int] = {}
        self.most_left: dict[int, int] = {}
        self.evictions = 0
        self.aborted = self.admissions = 0

    @property
    def ratio(self) -> float:
        return max(self.start - self.decays * self.set.decay, self.set.floor) if self.decays else self.start

    def arrive(self, job: Job, now_s: float) -> None:
        if job.prompt + job.output + 1 >= self.set.kv:
            job.rejected = True
            return
        job.queued_s = now_s
        self.waiting.append(job)
        if job.adapter in self.memory:
            self.memory.remove(job.adapter)
            self.memory.append(job.adapter)

    # --- get_next_batch_to_run

    def next_batch(self, now_s: float) -> Batch | None:
        for adapter in [a for a, end_s in self.copies.items() if end_s <= now_s]:
            del self.copies[adapter]
        while True:
            self.merge()
            batch = self.prefill(now_s)
            if batch is None and not self.running:
                if not self.waiting:
                    self.start, self.decays = self.set.ratio, 0
                return None
            if batch is None:
                batch = self.decode(now_s)
            if batch is not None:
                self.last = batch
                return batch

    def merge(self) -> None:
        last, self.last = self.last, None
        if last is None or not last.chunks:
            return
        jobs = [job for job, _ in last.chunks] + last.decodes
        kept = [job for job in jobs if not job.done and job is not self.chunked]
        if len(kept) < len(jobs) or not self.running:
            self.full = False
        self.running += kept

    # --- get_new_batch_prefill and PrefillAdder

    def prefill(self, now_s: float) -> Batch | None:
        if (self.full or not self.waiting) and self.chunked is None:
            return None
        seats = self.set.running - len(self.running)
        if seats <= 0 and self.chunked is None:
            self.full = True
            return None
        riding = len(self.running) if self.set.mixed else 0
        rem_input, rem_chunk = self.set.prefill - riding, self.set.chunk - riding
        expected = self.ratio * sum(min(job.output - job.generated, CLIP) for job in self.running)
        rem_total = self.free - riding - expected
        cur_rem = self.free - riding
        chunks: list[tuple[Job, int]] = []
        if self.chunked is not None:
            job = self.chunked
            most = min(rem_chunk, int(rem_total))
            if most <= 0:
                most = max(rem_chunk, 1)
            new = min(job.to_prefill - job.computed, most)
            chunks.append((job, new))
            if new == job.to_prefill - job.computed:
                self.chunked = None
                rem_total -= min(job.output, CLIP)
            rem_total, cur_rem, rem_input, rem_chunk = rem_total - new, cur_rem - new, rem_input - new, rem_chunk - new
        adapters = {job.adapter for job in self.running if not job.done} | {job.adapter for job, _ in chunks}
        if self.set.drain_s > 0:
            self.update_drainer(now_s)
        for job in list(self.waiting):
            if self.set.slots and not self.may_join(job, adapters, now_s):
                continue
            if len(chunks) >= seats:
                self.full = True
                break
            need, rest = job.to_prefill, min(job.output - job.generated, CLIP)
            if need + rest + 1 >= rem_total:
                self.full = True
                break
            if need >= rem_input and chunks:
                break
            new = min(need, rem_chunk)
            if new <= 0:
                break
            chunks.append((job, new))
            self.waiting.remove(job)
            job.computed = 0
            self.admissions += 1
            job.turn = self.admissions
            if job.admitted_s is None:
                job.admitted_s = now_s
            adapters.add(job.adapter)
            if new == need:
                rem_total -= min(job.output, CLIP)
            else:
                self.chunked = job
            rem_total, cur_rem, rem_input, rem_chunk = rem_total - new, cur_rem - new, rem_input - new, rem_chunk - new
            if rem_total <= 0 or cur_rem <= 0:
                self.full = True
                break
            if rem_input <= 0 or rem_chunk <= 0:
                break
        if not chunks:
            return None
        return self.extend(chunks, now_s)

    def extend(self, chunks: list[tuple[Job, int]], now_s: float) -> Batch:
        batch = Batch(chunks, [])
        if self.set.mixed and self.running:
            self.running = [job for job in self.running if not job.done]
            tokens = sum(new for _, new in chunks)
            if self.running and self.free < tokens + len(self.running):  # what the code does not do: it fails
                self.retract(tokens, 0, now_s)
            batch.decodes, self.running = self.running, []
        for job, new in chunks:
            job.kv += new
            self.free -= new
        for job in batch.decodes:
            job.kv += 1
            self.free -= 1
        self.fetch(batch, [job for job, _ in chunks if job.computed == 0])
        return batch

    def may_join(self, job: Job, adapters: set[int], now_s: float) -> bool:
        if job.adapter in self.draining and job.output > self.most_left.get(job.adapter, 0) * 1.2:
            return False
        if job.adapter in adapters:
            return True
        if self.set.copy_s is None:
            return self.valid(adapters | {job.adapter})
        return self.overlap(job, adapters, now_s)

    def valid(self, adapters: set[int]) -> bool:
        in_batch = len(adapters & self.set.pinned)
        return len(adapters) <= self.set.slots and len(adapters) - in_batch <= self.set.slots - len(self.set.pinned)

    # --- update_running_batch and retract_decode

    def decode(self, now_s: float) -> Batch | None:
        before = len(self.running)
        self.running = [job for job in self.running if not job.done]
        if not self.running:
            self.full = False
            return None
        if self.free < len(self.running):
            self.retract(0, 1, now_s)
        else:
            self.decays += 1
        if len(self.running) < before:
            self.full = False
        if not self.running:
            return None
        for job in self.running:
            job.kv += 1
            self.free -= 1
        batch = Batch([], list(self.running))
        self.fetch(batch, [])
        return batch

    def retract(self, reserve: int, keep: int, now_s: float) -> None:
        order = sorted(self.running, key=lambda job: (-job.generated, job.prompt, job.turn))
        first = True
        while first or self.free < reserve + len(order):
            if len(order) == keep:
                break
            first = False
            job = order.pop()
            self.free += job.kv
            job.kv = job.computed = 0
            job.preemptions += 1
            job.queued_s = now_s
            self.waiting.append(job)
        if keep and len(order) == 1 and self.free < 1:
            job = order.pop()
            self.free += job.kv
            job.rejected = True
            self.aborted += 1
        self.running = [job for job in self.running if job in order]
        asked = sum(job.output for job in order)
        self.start = min((sum(job.generated for job in order) + 20 * len(order)) / (asked + 1), 1.0)
        self.decays = 0

    # --- LoRA

    def fetch(self, batch: Batch, new: list[Job]) -> None:
        jobs = [job for job, _ in batch.chunks] + batch.decodes
        if not self.set.slots:
            return
        loaded: dict[int, str] = {}
        if self.set.copy_s is None:
            loaded = self.prepare({job.adapter for job in jobs}, {job.adapter for job in self.running if not job.done})
            loaded.pop(0, None)
            batch.loads = [(a, next(job.rank for job in jobs if job.adapter == a), tier) for a, tier in loaded.items()]
        for job in new:
            tier = loaded.pop(job.adapter, "gpu") if self.set.copy_s is None else self.fresh.pop(job.adapter, "gpu")
            job.load_tier = CODE[tier] or job.load_tier

    def prepare(self, needed: set[int], busy: set[int]) -> dict[int, str]:
        """Adapter -> tier for those that were in no slot."""
        loaded = {}
        for adapter in sorted(needed, key=scattered):
            if adapter in self.slots:
                continue
            loaded[adapter] = self.find(adapter, needed | busy) if adapter else "host"
            if len(self.slots) == self.set.slots:
                others = [a for a in self.slots if a not in needed and a not in self.set.pinned]
                victim = next((a for a in others if a), 0)
                self.evictions += victim != 0
                self.slots.remove(victim)
            self.slots.append(adapter)
        if self.set.policy == "lru":
            self.slots = [a for a in self.slots if a not in needed] + sorted(needed, key=scattered)
        return loaded

    def find(self, adapter: int, held: set[int]) -> str:
        if self.set.host is None or adapter in self.memory:
            return "host"
        if len(self.memory) == self.set.host:
            victim = next(a for a in self.memory if a not in held and a not in self.set.pinned)
            self.memory.remove(victim)
            if victim in self.slots:
                self.slots.remove(victim)
                self.evictions += 1
        self.memory.append(adapter)
        if self.set.remote and adapter not in self.on_disk:
            self.on_disk.add(adapter)
            return "remote"
        return "disk"

    def overlap(self, job: Job, adapters: set[int], now_s: float) -> bool:
        if job.adapter in self.copies:
            return False
        if job.adapter in self.slots:
            return True
        held = adapters | self.copies.keys()
        if not self.valid(held | {job.adapter}):
            return False
        for adapter, tier in self.prepare(held | {job.adapter}, held).items():
            if adapter:
                self.copies[adapter] = now_s + self.set.copy_s[tier]
                self.fresh[adapter] = tier
        return job.adapter == 0

    def update_drainer(self, now_s: float) -> None:
        self.most_left = {}
        for job in self.running:
            self.most_left[job.adapter] = max(self.most_left.get(job.adapter, 0), job.output - job.generated)
        if len(self.most_left) >= self.set.slots:
            since: dict[int, float] = {}
            for job in self.waiting:
                since.setdefault(job.adapter, job.queued_s)
            late = [a for a in since if now_s > since[a] + self.set.drain_s and a not in self.draining.values()]
            for starving in sorted(late, key=lambda a: (since[a], a)):
                eligible = [a for a in self.most_left if a not in self.draining]
                if not eligible:
                    break
                self.draining[min(eligible, key=lambda a: (self.most_left[a], a))] = starving
        for adapter in list(self.draining):
            if adapter not in self.most_left:
                del self.draining[adapter]

    # --- the loop

    def run(self, requests: Sequence[Request], latency) -> list[Job]:  # type: ignore[no-untyped-def]
        jobs = [Job(r.index, r.adapter, r.rank, r.prompt_tokens, r.output_tokens, r.arrival_s) for r in requests]
        pending = deque(jobs)
        in_s, now_s = latency.frontend_in_s, 0.0
        self.plans: list[tuple[float, StepPlan]] = []
        while True:
            batch = self.next_batch(now_s)
            if batch is None:
                due_s = min(self.copies.values(), default=float("inf")) if self.waiting else float("inf")
                next_s = pending[0].arrival_s + in_s if pending else float("inf")
                if due_s == next_s == float("inf"):
                    return jobs
                if due_s <= next_s:
                    now_s = due_s
                else:
                    now_s = next_s
                    self.arrive(pending.popleft(), now_s)
                continue
            plan = self.plan_of(batch)
            self.plans.append((now_s, plan))
            timing = latency.price(plan)
            gpu_s, host_s = timing.gpu_s, timing.host_s + timing.load_s + timing.sync_s
            alternating = max(timing.load_s + gpu_s, host_s + timing.tail_s) if timing.launch_bound else host_s + gpu_s
            end_s = now_s + alternating
            while pending and pending[0].arrival_s + in_s < end_s:
                job = pending.popleft()
                self.arrive(job, job.arrival_s + in_s)
            now_s = end_s
            self.deliver(batch, now_s + latency.frontend_out_s(len(self.running)))

    def plan_of(self, batch: Batch) -> StepPlan:
        jobs = [job for job, _ in batch.chunks] + batch.decodes
        tokens = sum(new for _, new in batch.chunks)
        lora = sum(new for job, new in batch.chunks if job.adapter) + sum(job.adapter > 0 for job in batch.decodes)
        return StepPlan(
            tuple(Prefill(job.index, job.computed, new) for job, new in batch.chunks), len(batch.decodes),
            sum(job.kv - 1 for job in batch.decodes), tokens + len(batch.decodes), len(jobs),
            len({job.adapter for job in jobs} - {0}), lora, max(job.rank for job in jobs), True, tuple(batch.loads), 1,
        )  # fmt: skip

    def deliver(self, batch: Batch, client_s: float) -> None:
        for job, new in batch.chunks:
            job.computed += new
        emitting = [job for job, _ in batch.chunks if job.computed == job.to_prefill] + batch.decodes
        for job in emitting:
            job.generated += 1
            if job.first_token_s is None:
                job.first_token_s = client_s
            if job.done:
                job.last_token_s = client_s
                self.free += job.kv
                job.kv = 0
