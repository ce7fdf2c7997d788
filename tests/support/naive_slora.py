"""S-LoRA's loop written out plainly: one step at a time over lists, nothing remembered that can be counted again.

The slow twin of SloraEngine with its queues and pool. Written from the description of the published code (c1ddf48) and
of the paper's system; only the copy engine, which has tests of its own, is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from simlora.engines.request import Request
from simlora.engines.slora.admission import SloraLimits
from simlora.latency.step import AdapterMix, Prefill, StepPlan
from simlora.memory.copies import CopyEngine, Stage


@dataclass(eq=False)
class Job:
    """A request inside the naive engine."""

    index: int
    adapter: int
    rank: int
    prompt: int
    output: int
    at_s: float
    emitted: int = 0
    rejected: bool = False
    tier: int = 0
    admitted_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None


@dataclass(frozen=True)
class Policy:
    """fcfs, cluster (more: adapters), abort (more: seconds), vtc."""

    name: str = "fcfs"
    more: float = 0.0


@dataclass
class NaiveSlora:
    """One replica. make_copies: with overlapped loading."""

    limits: SloraLimits
    units: Callable[[int], int]
    policy: Policy
    latency: Any
    copies: CopyEngine | None = None
    stages: Callable[[int], Sequence[Stage]] | None = None
    now_s: float = 0.0
    running: list[Job] = field(default_factory=list)
    accepted: list[Job] = field(default_factory=list)
    waiting: list[Job] = field(default_factory=list)
    """In order of arrival."""
    held: dict[int, int] = field(default_factory=dict)
    idle: list[int] = field(default_factory=list)
    """Least recently used first."""
    ahead: list[int] = field(default_factory=list)
    tagged: set[int] = field(default_factory=set)
    served: dict[int, int] = field(default_factory=dict)
    c: int = 0
    evictions: int = 0
    loads: int = 0
    arrivals_estimate: int = 1
    batch_estimate: int = 1
    left: int = 0
    steps: int = 0
    looks: int = 0

    def run(self, requests: Sequence[Request]) -> list[Job]:
        """Play the requests to the end."""
        front = self.latency.frontend_in_s
        jobs = [
            Job(r.index, r.adapter, r.rank, r.prompt_tokens, r.output_tokens, r.arrival_s + front) for r in requests
        ]
        self.coming = sorted(jobs, key=lambda job: (job.at_s, job.index))
        since_s, polls, last = 0.0, 0, ()
        while self.coming or self.waiting or self.accepted or self.running:
            if not self.running:
                self._arrive_before(since_s + polls * self.limits.idle_s)
                self.now_s = since_s + polls * self.limits.idle_s
                polls += 1
                self._advance()
                batch = self._look()
                if not batch:
                    continue
                self._prefill(batch)
                last = ()
            else:
                self._arrive_before(self.now_s)
                self._advance()
                batch = self._look() if self.c >= 10 else []
                if batch:
                    self._prefill(batch)
                    last = ()
                else:
                    last = self._decode(last)
            if not self.running:
                since_s, polls = self.now_s, 1
        return jobs

    # --- arrivals -----------------------------------------------------------------------------------------------

    def _arrive_before(self, time_s: float) -> None:
        while self.coming and self.coming[0].at_s < time_s:
            job = self.coming.pop(0)
            if not self._passes([], job, 0):
                job.rejected = True
                continue
            if self.policy.name == "vtc":
                self._lift(job)
            self.waiting.append(job)

    def _lift(self, job: Job) -> None:
        self.served.setdefault(job.adapter, 0)
        users = {other.adapter for other in self.waiting}
        if job.adapter not in users and users:
            self.served[job.adapter] = max(self.served[job.adapter], min(self.served[user] for user in users))

    # --- who gets in --------------------------------------------------------------------------------------------

    def _passes(self, holders: list[Job], new: Job, tokens: int, others: Sequence[Job] = ()) -> bool:
        """The tests for one more. holders: with those accepted; tokens: prompts of the accepted ones; others: who has
        an adapter in the pool besides."""
        limits = self.limits
        everybody = [*holders, new]
        ranks = {job.adapter: job.rank for job in [*everybody, *others] if job.adapter}
        charge = sum(self.units(rank) for rank in ranks.values())
        if len(everybody) > limits.running_max_req_size or tokens + new.prompt > limits.batch_max_tokens:
            return False
        if not limits.unified and charge > limits.adapter_units:
            return False
        states = []
        for job in everybody:
            tokens = max(job.emitted, 1)  # a new one counts as if it had its first token
            states.append((job.prompt + tokens, job.output - 1 - (job.emitted if job in self.running else 0)))
        return self._worst(states) < limits.kv_units - (charge if limits.charged else 0)

    def _look(self) -> list[Job]:
        """Accept requests from the queue; returns those whose adapters are there."""
        self.looks += 1
        again: list[Job] = []
        self._prefix(self.accepted, again, [])
        refused = [job for job in self.accepted if job not in again]
        if not refused and len(self.running) + len(self.accepted) < self.limits.running_max_req_size:
            new = self._scan()
            for job in new:
                self.waiting.remove(job)
            for job in [job for job in new if job.adapter in self.held] + [
                job for job in new if job.adapter not in self.held
            ]:
                self._hold(job)
            self.accepted += new
        ready = [job for job in self.accepted if not self._flying(job.adapter) and job not in refused]
        self.accepted = [job for job in self.accepted if job not in ready]
        return ready

    def _scan(self) -> list[Job]:
        name, out = self.policy.name, []
        if name == "vtc":
            return self._scan_fair()
        if name == "abort":
            return self._scan_abort()
        inside = {job.adapter for job in self.running}
        if name == "cluster" and len(inside - {0}) >= self.policy.more:
            preferred = [job for job in self.waiting if job.adapter in inside or not job.adapter]
            self._prefix(preferred, out)
        self._prefix([job for job in self.waiting if job not in out], out)
        return out

    def _prefix(self, order: list[Job], out: list[Job], before: list[Job] | None = None) -> None:
        """Append to out who passes, up to the first that does not. before: accepted ones, who count as well."""
        for job in order:
            inside = (self.accepted if before is None else before) + out
            if not self._passes(self.running + inside, job, sum(j.prompt for j in inside), self.accepted):
                return
            out.append(job)

    def _scan_fair(self) -> list[Job]:
        out: list[Job] = []
        while users := {job.adapter for job in self.waiting if job not in out}:
            first_seen = list(self.served)
            user = min(users, key=lambda user: (self.served[user], first_seen.index(user)))
            head = next(job for job in self.waiting if job.adapter == user and job not in out)
            size = len(out)
            self._prefix([head], out)
            if len(out) == size:
                break
            self.served[user] += head.prompt
        return out

    def _scan_abort(self) -> list[Job]:
        self.arrivals_estimate = int(0.7 * (len(self.waiting) - self.left) + 0.3 * self.arrivals_estimate)
        for job in [job for job in self.waiting if job.at_s + (self.policy.more - 0.5) <= self.now_s]:
            job.rejected = True
            self.waiting.remove(job)
        out: list[Job] = []
        newest_first = self.arrivals_estimate >= self.batch_estimate
        self._prefix(self.waiting[::-1] if newest_first else self.waiting, out)
        if out:
            self.left = len(self.waiting) - len(out)
            self.batch_estimate = max(int(0.7 * len(out) + 0.3 * self.batch_estimate), 1)
        return out

    # --- adapters -----------------------------------------------------------------------------------------------

    def _flying(self, adapter: int) -> bool:
        return self.copies is not None and adapter in self.copies

    def _advance(self) -> None:
        while self.copies is not None and (event_s := self.copies.next_event_s()) is not None:
            if event_s > self.now_s:
                return
            for done in self.copies.advance_to(event_s):
                if done.adapter in self.ahead:
                    self.ahead.remove(done.adapter)
                    self.idle.append(done.adapter)

    def _hold(self, job: Job) -> None:
        adapter = job.adapter
        if not adapter:
            return
        if adapter not in self.held:
            self._bring(adapter, job.rank)
            job.tier = 1
        elif self._flying(adapter):
            job.tier = 1
        for group in (self.idle, self.ahead):
            if adapter in group:
                group.remove(adapter)

    def _bring(self, adapter: int, rank: int) -> None:
        self._make_room(self.units(rank), adapters=True)
        self.held[adapter] = self.units(rank)
        self.loads += 1
        if self.copies is not None and self.stages is not None:
            self.copies.start(adapter, self.stages(rank), self.now_s)

    def _free_units(self, adapters: bool) -> int:
        kv = sum(-(-self._tokens(job) // self.limits.unit_tokens) for job in self.running)
        held = sum(self.held.values())
        if self.limits.unified:
            return self.limits.total_units - kv - held
        return self.limits.adapter_units - held if adapters else self.limits.kv_units - kv

    @staticmethod
    def _tokens(job: Job) -> int:
        """In the KV cache: all but the last token."""
        return job.prompt + max(job.emitted - 1, 0)

    def _make_room(self, units: int, adapters: bool) -> None:
        if not self.limits.unified and not adapters:
            assert self._free_units(False) >= units
            return
        while self._free_units(adapters) < units:
            if self.idle:
                self._evict(self.idle[0])
            else:
                adapter = self.ahead.pop()
                assert self.copies is not None
                self.copies.cancel(adapter, self.now_s)
                del self.held[adapter]

    def _evict(self, adapter: int) -> None:
        self.idle.remove(adapter)
        del self.held[adapter]
        self.evictions += 1

    def _prefetch(self) -> None:
        window, tokens = [], 0
        for job in self._order():
            tokens += job.prompt
            if tokens > self.limits.batch_max_tokens:
                break
            window.append(job)
        wanted = {job.adapter: job.rank for job in window if job.adapter}
        self.tagged = set(wanted)
        for adapter in wanted:
            if adapter in self.idle:
                self.idle.remove(adapter)
                self.idle.append(adapter)
        used = {job.adapter for job in self.running + self.accepted}
        never = self.limits.adapter_units
        if self.limits.unified:
            states = [(job.prompt + job.emitted, job.output - job.emitted - 1) for job in self.running]
            never = self.limits.total_units - self._worst(states)
        never -= sum(self.held[adapter] for adapter in used if adapter)
        for adapter, rank in wanted.items():
            if adapter in used:
                continue
            never -= self.units(rank)
            if self.limits.cached and never < 0:
                return
            if adapter in self.held:
                continue
            spare = sum(self.held[a] for a in self.idle if a not in self.tagged) if self.limits.cached else 0
            if self._free_units(True) + spare < self.units(rank):
                return
            self._bring(adapter, rank)
            self.ahead.append(adapter)

    def _order(self) -> list[Job]:
        """The queue as prefetching sees it."""
        if self.policy.name == "abort":
            return self.waiting[::-1]
        if self.policy.name != "vtc":
            return self.waiting
        left, served, order = list(self.waiting), dict(self.served), []
        while left:
            user = min({job.adapter for job in left}, key=lambda user: (served[user], list(served).index(user)))
            order.append(next(job for job in left if job.adapter == user))
            left.remove(order[-1])
            served[user] += order[-1].prompt
        return order

    def _worst(self, states: list[tuple[int, int]]) -> int:
        """Units at the fullest moment; states: (tokens now, tokens to come)."""
        size = self.limits.unit_tokens
        return max(sum(-(-(cur + end) // size) for cur, rest in states if rest >= end) for _, end in states)

    # --- steps --------------------------------------------------------------------------------------------------

    def _prefill(self, batch: list[Job]) -> None:
        loads = []
        for job in batch:
            if job.tier and self.copies is None:
                loads.append((job.adapter, job.rank, "host"))
            job.admitted_s = self.now_s
        start_s = self.now_s
        for job in batch:  # the rows of its prompt
            self._make_room(-(-job.prompt // self.limits.unit_tokens), adapters=False)
            self.running.append(job)
        prefills = tuple(Prefill(job.index, 0, job.prompt) for job in batch)
        tokens = sum(job.prompt for job in batch)
        self._step(self._plan(batch, prefills, 0, 0, tokens, True, tuple(loads)))
        for job in batch:
            job.emitted = 1
            job.first_token_s = self.now_s + self.latency.frontend_out_s(0)
        self._leave(free=False)
        self.c = 0
        assert self.now_s > start_s

    def _decode(self, last: tuple[Any, ...]) -> tuple[Any, ...]:
        """last: who was in the step before, if that decoded, and whether copies ran beside it."""
        if self.limits.prefetch and self.c in (5, 7) and self.waiting:
            self._prefetch()
        size = self.limits.unit_tokens
        growth = sum(self._tokens(job) % size == 0 for job in self.running)
        self._make_room(growth, adapters=False)
        if self.policy.name == "vtc":
            for job in self.running:
                self.served[job.adapter] += 2
        copying = self.copies is not None and len(self.copies.links["host"]) > 0
        state = tuple(job.index for job in self.running), copying
        context = sum(self._tokens(job) for job in self.running)
        count = len(self.running)
        self._step(self._plan(self.running, (), count, context, count, state != last, (), copying))
        for job in self.running:
            job.emitted += 1
        self._leave(free=True)
        if self.c < 10:
            self.c += 1
        return state

    def _leave(self, free: bool) -> None:
        """Whoever has all its tokens goes. free: this is when the published code frees adapters."""
        done = sorted((job for job in self.running if job.emitted == job.output), key=lambda job: job.index)
        for job in done:
            job.last_token_s = self.now_s + self.latency.frontend_out_s(0)
            self.running.remove(job)
            users = [other.adapter for other in self.running + self.accepted]
            if job.adapter and job.adapter not in users:
                self.idle.append(job.adapter)
        if done and not self.limits.cached and (free or not self.running):
            for adapter in list(self.idle):
                if not self.running or adapter not in self.tagged:
                    self._evict(adapter)

    def _plan(
        self,
        jobs: list[Job],
        prefills: tuple[Prefill, ...],
        decodes: int,
        context: int,
        tokens: int,
        changed: bool,
        loads: tuple[tuple[int, int, str], ...],
        copying: bool | None = None,
    ) -> StepPlan:
        if copying is None:
            copying = self.copies is not None and len(self.copies.links["host"]) > 0
        ranks = {job.adapter: job.rank for job in jobs if job.adapter}
        own = [(job.prompt if prefills else 1, job.rank) for job in jobs if job.adapter]
        rank_tokens, lora_tokens = sum(n * rank for n, rank in own), sum(n for n, _ in own)
        largest = max(ranks.values(), default=0)
        mix = AdapterMix(sum(ranks.values()), rank_tokens, largest, len(set(ranks.values())))
        return StepPlan(
            prefills, decodes, context, tokens, len(jobs), len(ranks), lora_tokens, largest, changed, loads, 1, mix=mix,
            copying=copying,
        )  # fmt: skip

    def _step(self, plan: StepPlan) -> None:
        """Host and GPU alternate."""
        self.steps += 1
        timing = self.latency.price(plan)
        host = timing.host_s + timing.load_s + timing.sync_s
        if timing.launch_bound:
            self.now_s += max(timing.load_s + timing.gpu_s, host + timing.tail_s)
        else:
            self.now_s += host + timing.gpu_s
