"""vLLM with loads on a side stream, written out plainly on top of the naive scheduler: sets and lists, walked anew in
every step. The copies themselves are a CopyEngine, which has tests of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from support.naive_tiers import NaiveTiers
from support.naive_vllm import TIER_CODE, Job, NaiveReplica, NaiveVllm, Scheduled

from simlora.engines.request import Request
from simlora.engines.vllm.batch import VllmLimits
from simlora.latency.step import StepPlan, StepTiming
from simlora.memory.copies import CopyEngine, Stage

NEVER_S = float("inf")


class NaiveOverlap(NaiveVllm):
    """A request whose adapter is not there yet is skipped, and its adapter copied."""

    def __init__(
        self,
        limits: VllmLimits,
        tiers: NaiveTiers,
        copies: CopyEngine,
        stages: Callable[[int, str], Sequence[Stage]],
        prefetch: bool,
    ) -> None:
        super().__init__(limits, tiers)
        self.copies, self.stages, self.prefetch = copies, stages, prefetch
        self.loading: dict[int, str] = {}
        self.fresh: dict[int, str] = {}
        self.copying = False

    def due_s(self) -> float:
        event_s = self.copies.next_event_s()
        return NEVER_S if event_s is None else event_s

    def schedule(self, now_s: float) -> Scheduled:
        assert self.tiers is not None
        while (due_s := self.due_s()) <= now_s:
            for done in self.copies.advance_to(due_s):
                self.fresh[done.adapter] = self.loading.pop(done.adapter)
                self.tiers.release(done.adapter)
        out = super().schedule(now_s)
        if self.prefetch:
            self._prefetch(out, now_s)
        self.copying = len(self.copies.links["host"]) > 0
        return out

    def _admit(self, budget: int, out: Scheduled, now_s: float) -> None:
        assert self.tiers is not None
        limits = self.limits
        adapters = {chunk[0].adapter for chunk in out.chunks} - {0}
        skipped: deque[Job] = deque()
        later: set[int] = set()
        while (self.skipped or self.waiting) and budget > 0:
            if len(self.running) == limits.max_num_seqs:
                break
            queue = self.skipped or self.waiting
            job = queue[0]
            adapter = job.adapter
            if adapter in self.loading or adapter in later or (adapter and not self._has_slot(adapter, adapters)):
                skipped.append(queue.popleft())
                continue
            total = job.tokens
            if total > budget and not limits.enable_chunked_prefill:
                break
            new = min(total, budget)
            if self._blocks(total if limits.reserve_full_prompt else new) > self.free:
                break
            if adapter and adapter not in self.tiers.slots:
                skipped.append(queue.popleft())
                if self.prefetch:
                    later.add(adapter)
                else:
                    self._begin(job, now_s)
                continue
            self._allocate(job, new)
            queue.popleft()
            self.running.append(job)
            job.to_prefill = total
            if job.admitted_s is None:
                job.admitted_s = now_s
            if adapter:
                self._join(job, adapters)
            self._take(job, new, out)
            budget -= new
        out.skipped = len(skipped)
        (self.skipped if limits.skipped_first else self.waiting).extendleft(reversed(skipped))

    def _has_slot(self, adapter: int, adapters: set[int]) -> bool:
        return adapter in adapters or super()._has_slot(adapter, adapters | set(self.loading))

    def _join(self, job: Job, adapters: set[int]) -> None:
        assert self.tiers is not None
        if job.adapter not in adapters:
            tier, _ = self.tiers.activate(job.adapter)
            assert tier == "gpu"
            adapters.add(job.adapter)
        if job.adapter in self.fresh:
            job.load_tier = TIER_CODE[self.fresh.pop(job.adapter)]

    def _begin(self, job: Job, now_s: float) -> None:
        assert self.tiers is not None
        tier, victim = self.tiers.activate(job.adapter)
        self.evictions += victim is not None
        self.loading[job.adapter] = tier
        self.copies.start(job.adapter, self.stages(job.rank, tier), now_s)

    def _prefetch(self, out: Scheduled, now_s: float) -> None:
        tiers, pinned = self.tiers, self.limits.pinned
        assert tiers is not None
        active = {chunk[0].adapter for chunk in out.chunks} - {0} - pinned
        first: dict[int, Job] = {}
        for job in [*self.skipped, *self.waiting]:
            if job.adapter and job.adapter not in active | pinned:
                first.setdefault(job.adapter, job)
        places = self.limits.max_loras - len(pinned)
        window = list(first)[: places - len(active)]
        for adapter in window:
            if adapter in tiers.slots or len(active | set(self.loading)) >= places:
                continue
            full = [(tiers.slots, tiers.capacity)]
            if adapter not in tiers.host:
                full.append((tiers.host, tiers.host_capacity))
            if any(len(tier) == size and not self._unwanted(tier, window) for tier, size in full):
                continue
            in_use = set(tiers.in_use)
            tiers.in_use |= set(window)
            self._begin(first[adapter], now_s)
            tiers.in_use = in_use | {adapter}
            for tier in (tiers.slots, tiers.host):
                for other in window:
                    if other in tier and other != adapter:
                        tier.remove(other)
                        tier.append(other)

    def _unwanted(self, tier: list[int], window: list[int]) -> list[int]:
        assert self.tiers is not None
        kept = self.tiers.in_use | self.tiers.pinned | set(window)
        return [adapter for adapter in tier if adapter not in kept]


class _Aware:
    """Prices a step with the copies that run beside it."""

    def __init__(self, latency: Any, engine: NaiveOverlap) -> None:
        self._latency, self._engine = latency, engine
        self.frontend_in_s = latency.frontend_in_s
        self.frontend_out_s = latency.frontend_out_s

    def price(self, plan: StepPlan) -> StepTiming:
        return self._latency.price(plan._replace(copying=self._engine.copying))  # type: ignore[no-any-return]


class NaiveOverlapReplica(NaiveReplica):
    """The step loop of NaiveReplica; with nothing to compute, it waits for a copy or for the next arrival."""

    def __init__(self, engine: NaiveOverlap, latency: Any) -> None:
        super().__init__(engine.limits, _Aware(latency, engine), engine.tiers)
        self.engine = self.overlap = engine

    def run(self, requests: Sequence[Request]) -> list[Job]:
        jobs = [Job(r.index, r.adapter, r.rank, r.prompt_tokens, r.output_tokens, r.arrival_s) for r in requests]
        pending, engine = deque(jobs), self.overlap
        play = self._asynchronous if self.limits.async_scheduling else self._alternating
        while pending or engine.waiting or engine.skipped:
            arrival_s = pending[0].arrival_s + self.latency.frontend_in_s if pending else NEVER_S
            now_s = engine.due_s() if engine.due_s() <= arrival_s else self._arrive(pending)
            play(now_s, pending)
        return jobs
