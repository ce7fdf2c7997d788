"""LoRAX's batching loop, adapter exchange and loader written out plainly: lists, one loop per step, blocking calls.

The slow twin of LoraxEngine and Replica. `serve` is a sequence of prefill and decode calls, each of which moves the
clock; whatever arrives meanwhile is queued. Only the next-batch rules read adapters and blocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import floor
from typing import Any

from support.naive_job import NaiveJob

from simlora.engines.lorax.batching import LoraxLimits
from simlora.engines.lorax.loader import LoaderTimes
from simlora.engines.request import Request
from simlora.latency.step import AdapterMix, Prefill, StepPlan

TIER_CODE = {"gpu": 0, "host": 1, "disk": 2, "remote": 3}


@dataclass(eq=False)
class Job(NaiveJob):
    """A request inside the naive engine."""

    computed: int = 0
    tokens: int = 0
    """Output tokens that came out."""
    load_s: float = 0.0


@dataclass(eq=False)
class Adapter:
    name: int
    rank: int
    queue: deque[Job] = field(default_factory=deque)
    cost: Fraction | None = None
    since_s: float = 0.0
    offloads_to_come: int = 0
    loads_to_come: int = 0
    loaded: bool = False
    cold: str = "gpu"


class NaiveLorax:
    """One replica and its clock."""

    def __init__(self, limits: LoraxLimits, times: LoaderTimes, latency: Any, pad: Any) -> None:
        self.limits, self.times, self.latency, self.pad = limits, times, latency, pad
        self.now_s = 0.0
        self.future: deque[Job] = deque()
        self.adapters: dict[int, Adapter] = {}
        self.active: list[Adapter] = []
        self.pending: list[Adapter] = []
        self.budget = Fraction(1)
        self.free = limits.kv_blocks
        self.batch: list[Job] = []
        """Everybody who has blocks."""
        self.loader: deque[tuple[str, Adapter]] = deque()
        self.working: tuple[str, Adapter] | None = None
        self.work_end_s = 0.0
        self.stored: set[int] = set()
        self.downloaded: set[int] = set()
        self.host: set[int] = set()
        self.offloads = 0
        self.plans: list[tuple[float, StepPlan]] = []
        self.useless_loads = 0
        self.last_decoders: list[Job] | None = None

    # --- the batching task ----------------------------------------------------------------------------------------

    def run(self, requests: Sequence[Request]) -> list[Job]:
        jobs = [Job(r.index, r.adapter, r.rank, r.prompt_tokens, r.output_tokens, r.arrival_s) for r in requests]
        self.future = deque(jobs)
        while True:
            while (new := self.next_batch(set(), 0, self.limits.max_batch_prefill_tokens)) is not None:
                self.useless_loads = 0
                self.serve(new)
            if self.useless_loads > 2 * (len(self.adapters) + 8):
                self.useless_loads = 0
                for adapter in self.adapters.values():
                    for job in adapter.queue:
                        job.rejected = True
                    adapter.queue.clear()
            if not self.idle():
                return jobs

    def serve(self, new: list[Job]) -> None:
        limits = self.limits
        cached = self.prefill(new, [])
        waiting_tokens = 1
        while cached:
            if limits.chunked_prefill:
                chunks = self.next_chunks(cached)
                coming = sum(chunks.values()) + sum(job not in chunks for job in cached)
                min_size, budget = 0, max(limits.max_batch_prefill_tokens - coming, 0)
            else:
                impatient = waiting_tokens >= limits.max_waiting_tokens
                min_size = 0 if impatient else floor(len(cached) * limits.waiting_served_ratio)
                budget = limits.max_batch_prefill_tokens
            in_use = {job.adapter for job in cached}
            while (new_batch := self.next_batch(in_use, min_size, budget)) is not None:
                in_use |= {job.adapter for job in new_batch}
                if limits.chunked_prefill:
                    cached = self.prefill(new_batch, cached)
                else:
                    cached = cached + self.prefill(new_batch, [])
                waiting_tokens = 1
                if (limits.chunked_prefill and not cached) or not limits.eager_prefill:
                    break
            if cached:
                cached = self.step(cached, self.next_chunks(cached))
                waiting_tokens += 1

    def idle(self) -> bool:
        """Nothing runs: wait for the loader or for an arrival. False: nothing will come any more."""
        if self.working is None and self.loader:
            self.begin_work()
        arrival_s = self.future[0].arrival_s + self.latency.frontend_in_s if self.future else None
        if self.working is not None and (arrival_s is None or self.work_end_s <= arrival_s):
            self.now_s = self.work_end_s
            self.end_work()
        elif arrival_s is not None:
            self.now_s = arrival_s
            if not self.arrive():  # nobody hears of a refused request
                return self.idle()
        else:
            return False
        return True

    # --- next_batch -----------------------------------------------------------------------------------------------

    def next_batch(self, in_use: set[int], min_size: int, budget: int) -> list[Job] | None:
        waiting = sum(len(a.queue) for a in self.adapters.values())
        if budget == 0 or waiting == 0 or waiting < min_size:
            return None
        self.update_adapters(in_use)
        batch: list[Job] = []
        while (adapter := self.oldest()) is not None:
            job = adapter.queue.popleft()
            need = self.blocks(job)
            if need > self.free:
                adapter.queue.appendleft(job)
                break
            tokens = job.prompt
            if tokens > budget:
                if not self.limits.chunked_prefill or budget == 0:
                    adapter.queue.appendleft(job)
                    break
                tokens = budget
            self.free -= need
            budget -= tokens
            batch.append(job)
            self.chunk[job] = tokens
            if tokens < job.prompt:
                break
        if not batch:
            return None
        if len(batch) < min_size:
            for job in reversed(batch):
                self.free += self.blocks(job)
                self.adapters[job.adapter].queue.appendleft(job)
            return None
        for job in batch:
            job.admitted_s = self.now_s
            adapter = self.adapters[job.adapter]
            job.load_tier = TIER_CODE[adapter.cold]
            adapter.cold = "gpu"
        self.batch += batch
        return batch

    def oldest(self) -> Adapter | None:
        ready = [a for a in self.active if a.queue and self.is_ready(a)]
        within = [a for a in ready if self.now_s - a.since_s < self.limits.adapter_cycle_time_s]
        return min(within or ready, key=lambda a: self.order[a.queue[0]], default=None)

    def update_adapters(self, in_use: set[int]) -> None:
        removed: list[Adapter] = []
        for adapter in self.active:
            if adapter.name in in_use or len(removed) >= len(self.pending) or adapter.queue:
                continue
            removed.append(adapter)
        offloaded = list(removed)
        self.active = [a for a in self.active if a not in removed]
        if self.active and self.pending:
            front = self.active[0]
            if front.name not in in_use and self.now_s - front.since_s > self.limits.adapter_cycle_time_s:
                self.active.remove(front)
                self.pending.append(front)
                offloaded.append(front)
        for adapter in offloaded:
            assert adapter.cost is not None
            self.budget += adapter.cost
            adapter.loaded = False
            adapter.offloads_to_come += 1
            self.loader.append(("offload", adapter))
        while self.pending and len(self.active) < self.limits.max_active_adapters:
            first = self.pending[0]
            if first.cost is None or first.cost > self.budget:
                break
            self.pending.pop(0)
            self.budget -= first.cost
            first.since_s = self.now_s
            self.active.append(first)
            first.loads_to_come += 1
            self.loader.append(("load", first))

    def is_ready(self, adapter: Adapter) -> bool:
        return adapter.loaded and not adapter.offloads_to_come

    def blocks(self, job: Job) -> int:
        return -(-(job.prompt + job.output - 1) // self.limits.block_size)

    # --- arrivals -------------------------------------------------------------------------------------------------

    @property
    def chunk(self) -> dict[Job, int]:
        """First prompt tokens of jobs about to be prefilled."""
        return self.__dict__.setdefault("_chunk", {})

    @property
    def order(self) -> dict[Job, int]:
        return self.__dict__.setdefault("_order", {})

    def arrive(self) -> bool:
        job = self.future.popleft()
        waiting = sum(len(a.queue) for a in self.adapters.values())
        limits = self.limits
        too_long = job.prompt > limits.max_batch_prefill_tokens and not limits.chunked_prefill
        if (
            len(self.batch) + waiting >= limits.max_concurrent_requests
            or self.blocks(job) > limits.kv_blocks
            or too_long
            or self.times.cost(job.adapter, job.rank) > 1
        ):
            job.rejected = True
            return False
        adapter = self.adapters.get(job.adapter)
        if adapter is None:
            adapter = self.adapters[job.adapter] = Adapter(job.adapter, job.rank)
            self.loader.append(("download", adapter))
        if adapter not in self.active and adapter not in self.pending:
            self.pending.append(adapter)
        self.order[job] = len(self.order)
        adapter.queue.append(job)
        return True

    # --- the loader -----------------------------------------------------------------------------------------------

    def begin_work(self) -> None:
        kind, adapter = self.working = self.loader.popleft()
        seconds, name, times = 0.0, adapter.name, self.times
        if name not in times.resident:
            if kind == "offload":
                seconds = times.offload_s
                self.offloads += 1
            elif kind == "load":
                tier = "host" if name in self.host else "disk"
                seconds = times.load_s(adapter.rank, tier)
                found = "remote" if name in self.downloaded else tier
                self.downloaded.discard(name)
                adapter.cold = max(adapter.cold, found, key=lambda t: TIER_CODE[t])
                if times.host_cache:
                    self.host.add(name)
            elif times.download_s is not None and name not in self.stored:
                seconds = times.download_s(adapter.rank)
                self.downloaded.add(name)
        if adapter.queue and kind != "offload":
            adapter.queue[0].load_s += seconds
        self.work_end_s = self.now_s + seconds

    def end_work(self) -> None:
        assert self.working is not None
        kind, adapter = self.working
        self.working = None
        if kind == "download" or self.batch:
            self.useless_loads = 0
        elif kind == "load":
            self.useless_loads += 1
        if kind == "download":
            self.stored.add(adapter.name)
            adapter.cost = Fraction(self.times.cost(adapter.name, adapter.rank))
        elif kind == "load":
            adapter.loads_to_come -= 1
            adapter.loaded = adapter in self.active and adapter.loads_to_come == 0
        else:
            adapter.offloads_to_come -= 1

    # --- steps ----------------------------------------------------------------------------------------------------

    def next_chunks(self, cached: list[Job]) -> dict[Job, int]:
        left, out = self.limits.max_batch_prefill_tokens - (len(cached) - 1), {}
        for job in cached:
            if job.computed < job.prompt:
                out[job] = max(min(job.prompt - job.computed, left), 1)
                left -= out[job]
        return out

    def prefill(self, new: list[Job], cached: list[Job]) -> list[Job]:
        chunks = self.next_chunks(cached) | {job: self.chunk.pop(job) for job in new}
        return self.step(cached + new, chunks)

    def step(self, members: list[Job], chunks: dict[Job, int]) -> list[Job]:
        """One call of the shard; returns who is not done."""
        if self.working is None and self.loader:
            self.begin_work()
        stall_s = self.work_end_s - self.now_s if self.working is not None else 0.0
        plan = self.plan(members, chunks, stall_s)
        self.plans.append((self.now_s, plan))
        timing = self.latency.price(plan)
        host_s = timing.host_s + timing.load_s + timing.sync_s
        gpu_s = timing.gpu_s
        duration = max(timing.load_s + gpu_s, host_s + timing.tail_s) if timing.launch_bound else host_s + gpu_s
        end_s = self.now_s + duration
        while self.future and self.future[0].arrival_s + self.latency.frontend_in_s < end_s:
            self.arrive()
        self.now_s = end_s
        if self.working is not None:
            self.end_work()
        client_s = end_s + self.latency.frontend_out_s(len(self.batch))
        for job in members:
            job.computed += chunks.get(job, 0)
            if job.computed < job.prompt:
                continue
            job.tokens += 1
            if job.tokens == 1:
                job.first_token_s = client_s
            if job.tokens == job.output:
                job.last_token_s = client_s
                self.free += self.blocks(job)
                self.batch.remove(job)
        return [job for job in members if job.tokens < job.output]

    def plan(self, members: list[Job], chunks: dict[Job, int], stall_s: float) -> StepPlan:
        decoders = [job for job in members if job not in chunks]
        changed = bool(chunks) or decoders != self.last_decoders
        self.last_decoders = None if chunks else decoders
        ranks = {job.adapter: self.pad(job.rank) for job in members if job.adapter}
        tokens = [(job, chunks.get(job, 1)) for job in members]
        lora = [(job, new) for job, new in tokens if job.adapter]
        mix = AdapterMix(
            sum(ranks.values()), sum(new * ranks[job.adapter] for job, new in lora), max(ranks.values(), default=0),
            len(set(ranks.values())),
        )  # fmt: skip
        return StepPlan(
            tuple(Prefill(job.index, job.computed, new) for job, new in chunks.items()),
            len(decoders), sum(job.prompt + job.tokens - 1 for job in decoders), sum(new for _, new in tokens),
            len(members), len(ranks), sum(new for _, new in lora), max(ranks.values(), default=0), changed, (), 1,
            mix=mix, extra_s=stall_s,
        )  # fmt: skip
