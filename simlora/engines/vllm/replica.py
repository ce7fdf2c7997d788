"""One vLLM replica in simulated time: plan a step, price it, jump to where the batch changes.

A run is a number of identical planned steps. It ends at the scheduler's horizon, or earlier at the first boundary after
an arrival that the next plan could admit. The replica goes from run to run by itself, without looking at a clock, up to
the moment that somebody asks about: an arrival, a view, the end. What it knows of the run in progress are numbers, and
the run's row is written when it begins and corrected when it ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from simlora.engines.base import NEVER_S
from simlora.engines.epoch import alternate, boundary, index_after, index_at, plan_ahead
from simlora.engines.run_log import FIRST_GAP_S, HOST_S, ROW, RUNNING, STEPS, WAITING, RunLog
from simlora.engines.view import View
from simlora.engines.vllm.scheduler import VllmScheduler
from simlora.latency.step import NOTHING_PLANNED, StepPlan
from simlora.latency.step_latency import PriceTable

NOBODY = (0, 0, 0, 0)
Hook = Callable[[Any, float], None]


class Price(NamedTuple):
    """What is kept of the step that an epoch repeats."""

    host_s: float
    """Host time of the first step, a read-back's included; without it in `again_s`, that of the later ones."""
    again_s: float
    load_s: float
    base_s: float
    attention_s: float
    lora_s: float
    collective_s: float
    slope_s: float
    """Growth of the attention per step."""
    outside: tuple[str, ...]
    """Terms outside their measured range."""


NO_PRICE = Price(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, ())


class VllmReplica:
    """Drives one scheduler. Its state is that of `now_s`; `advance` brings it to another time."""

    def __init__(
        self,
        index: int,
        engine: VllmScheduler,
        latency: Any,
        coalesce: bool = True,
        prices: PriceTable | None = None,
    ) -> None:
        """latency: a StepLatency. coalesce=False plays every step by itself. prices: the latency's, where it has them:
        they price a step without asking it."""
        self.index, self.engine, self.latency, self.coalesce = index, engine, latency, coalesce
        self.requests = engine.requests
        self.log = RunLog()
        self.finished = self.rejected = self.outstanding = 0
        self.now_s = 0.0
        """The last boundary."""
        self.next_s = NEVER_S
        """The next one, if nothing comes in between."""
        self.before_change: Hook | None = None
        """Called as before_change(replica, now_s) before the state changes: stale views take their snapshots here."""
        self.on_boundary: Hook | None = None
        """Called as on_boundary(replica, now_s) after every plan, an empty one included, for checks."""
        self.on_finished: Callable[[float], None] | None = None
        """Called as on_finished(now_s) when requests are done."""
        self._prices = prices
        self._busy = False
        self._plan: StepPlan | None = None
        self._asleep = False
        """Requests wait while nothing can be computed: the run in progress is empty, and lasts until the scheduler's
        wake_s, or an arrival that it can act on."""
        self._in_flight = False
        self._first_weight = 0
        """Decoding requests of the step in flight at the run's start."""
        self._version = -1
        self._e_start_s = self._e_first_s = self._e_gap_s = self._e_slope_s = self._e_residual_s = 0.0
        """The epoch: see engines/epoch.py."""
        self._e_steps = 0
        self._price = NO_PRICE
        self._from = self._to = 0
        """Boundaries of the epoch between which the run lies."""
        self._start_s = self._first_s = 0.0
        """Its beginning, and its first boundary after that."""
        self._truncated = False
        self._running = 0
        self._preempted: list[int] = []
        self._preemptions = 0
        self._late: list[tuple[int, float]] = []
        """(reason, time) of those that came during the run."""

    # --- arrivals -----------------------------------------------------------------------------------------------

    def enqueue(self, request: int, now_s: float) -> None:
        """A request reaches the scheduler; it is rejected if it could not even run alone."""
        if self.next_s <= now_s:
            self._play(self.next_s, now_s)
        if not self.accepts(request, now_s):
            return
        could_admit = self.engine.enqueue(request, now_s)
        if not self._busy:
            self._play(now_s, now_s)
            return
        self._late.append((self.engine.arrival_reason, now_s))
        if could_admit:
            self._truncate_run(now_s)

    def accepts(self, request: int, now_s: float) -> bool:
        """Take note of an arrival; False: it could not run even alone, and is rejected."""
        if self.before_change is not None:
            self.before_change(self, now_s)
        requests = self.requests
        requests.replica[request] = self.index
        requests.routed_s[request] = now_s
        if not self.engine.fits(request):
            requests.reject(request)
            self.rejected += 1
            return False
        self.outstanding += 1
        return True

    def _truncate_run(self, now_s: float) -> None:
        """The run in progress ends at its next boundary; an empty one now."""
        if self._asleep:
            self._e_first_s = self._first_s = now_s
            self.log.values[FIRST_GAP_S - ROW] = now_s - self._start_s
            self._play(now_s, now_s)
        elif self._to - self._from > 1:
            index = index_after(self._e_start_s, self._e_first_s, self._e_gap_s, self._e_slope_s, now_s)
            if index < self._to:
                self._to = index if index > self._from else self._from + 1
                self.next_s = self._boundary(self._to)
                self._truncated = True

    def _boundary(self, index: int) -> float:
        return boundary(self._e_start_s, self._e_first_s, self._e_gap_s, self._e_slope_s, index)

    # --- runs ---------------------------------------------------------------------------------------------------

    def advance(self, until_s: float) -> None:
        """Play every run that ends by until_s."""
        if self.next_s <= until_s:
            self._play(self.next_s, until_s)

    def _play(self, now_s: float, until_s: float) -> None:
        """now_s is the end of the run in progress, or the moment an idle replica got work."""
        while now_s <= until_s:
            if self.before_change is not None:
                self.before_change(self, now_s)
            if self._busy:
                self._finish_run(now_s)
            self.now_s = now_s
            self._start_run(now_s)
            if self.on_boundary is not None:
                self.on_boundary(self, now_s)
            now_s = self.next_s

    def _start_run(self, now_s: float) -> None:
        """Plan the next run, price it, and find its end."""
        engine = self.engine
        self._plan = plan = engine.form_step(now_s)
        start = 0
        self._asleep = self._truncated = False
        if plan is None:
            if self._in_flight:
                first_s = now_s + (self._e_residual_s + self._price.slope_s * (self._to - 1))
            elif engine.wake_s < NEVER_S and engine.waiting.size:
                self._asleep = True
                first_s = engine.wake_s
            else:
                self._busy = False
                self.next_s = engine.wake_s
                return
            plan = NOTHING_PLANNED
            self._open_empty(now_s, first_s)
            to = 1
        else:
            if self._busy and engine.version == self._version and self._to < self._e_steps:
                start = self._to
                first_s = self._boundary(start + 1)
            else:
                self._open(plan, now_s)
                first_s = self._e_first_s
            steps, left = plan.max_repeat if self.coalesce else 1, self._e_steps - start
            to = start + (steps if steps < left else left)
            if engine.wake_s < NEVER_S and to > start + 1:  # the first plan at or after that time may differ
                after = index_at(self._e_start_s, self._e_first_s, self._e_gap_s, self._e_slope_s, engine.wake_s)
                to = min(to, max(start + 1, after))
        self._busy = True
        self._from, self._to = start, to
        self._start_s, self._first_s = now_s, first_s
        self.next_s = first_s if to == start + 1 else self._boundary(to)
        self._preempted = engine.preempted
        self._running = running = engine.num_running()
        # the row, as it is if the run lasts until next_s
        prefills, count, context, tokens, _, adapters, lora_tokens, rank, *_ = plan
        host_s, again_s, load_s, base_s, attention_s, lora_s, collective_s, slope_s, _ = self._price
        steps = to - start
        if start:
            host_s, load_s, weight = again_s, 0.0, count
            attention_s += slope_s * start
        else:
            weight = self._first_weight if engine.asynchronous else count
            if steps > 1:
                host_s = (host_s + (steps - 1) * again_s) / steps
        padded = lora_tokens * rank
        slots, kv, seqs, queue = engine.waiting_by_reason() if engine.waiting.size else NOBODY
        self.log.values.extend((
            now_s, first_s - now_s, weight, self._e_gap_s + self._e_slope_s * start, self._e_slope_s, steps,
            count, len(prefills), tokens - count * engine.tokens_per_decode, context, running, slots, kv, seqs, queue,
            adapters, engine.kv.total - engine.kv.free, host_s, load_s, base_s, attention_s, lora_s, collective_s,
            (padded - engine.rank_tokens) / padded if padded else 0.0, engine.preemptions - self._preemptions,
        ))  # fmt: skip
        self._preemptions = engine.preemptions

    def _open_empty(self, now_s: float, until_s: float) -> None:
        self._e_start_s, self._e_first_s, self._e_gap_s, self._e_slope_s = now_s, until_s, 0.0, 0.0
        self._e_steps, self._e_residual_s, self._version, self._price = 1, 0.0, -1, NO_PRICE

    def _open(self, plan: StepPlan, now_s: float) -> None:
        """Price the plan and begin an epoch with it."""
        engine, prices = self.engine, self._prices
        (
            prefills,
            count,
            context,
            tokens,
            requests,
            adapters,
            lora_tokens,
            _,
            changed,
            loads,
            steps,
            emitted,
            skipped,
            *_,
        ) = plan
        if prices is None:
            (
                host_s, load_s, base_s, attention_s, lora_s, collective_s, slope_s, launch_bound, tail_s, steps,
                outside, sync_s, again_s,
            ) = self.latency.price(plan)  # fmt: skip
        else:
            key = (tokens, requests, adapters, lora_tokens, not prefills, changed)
            fixed = prices.fixed.get(key)
            if fixed is None:
                fixed = prices.fixed[key] = prices.price_fixed(key)
            host_s, sync_s, launch_s, again_s, base_s, lora_s, collective_s, outside = fixed
            attention_s = context * prices.decode_token_s + count * prices.request_s
            load_s = slope_s = tail_s = 0.0
            if prefills:
                pairs = 0.0
                for _, done, new in prefills:
                    pairs += new * (done + 0.5 * (new + 1))
                attention_s += pairs * prices.pair_s
                steps = 1
            else:
                slope_s = count * emitted * prices.decode_token_s
            for _, rank, tier in loads:
                load_s += prices.load_s(rank, tier)
            if context > prices.largest_context:
                outside = prices.long_context
            if skipped:
                skip_s = skipped * prices.skip_s
                host_s, again_s = host_s + skip_s, again_s + skip_s
            launch_bound = launch_s > 0.0
            if launch_bound:  # the GPU starts with the first launch; where it needs longer, the rest is the tail
                tail_s = base_s + attention_s + lora_s + collective_s - launch_s
                if tail_s < prices.tail_s:
                    tail_s = prices.tail_s
        if loads:
            of_request = self.requests.load_s
            for request, (_, rank, tier) in zip(engine.loading, loads, strict=True):
                of_request[request] += self.latency.load_s(rank, tier)
        gpu_s = base_s + attention_s + lora_s + collective_s
        if engine.asynchronous:
            residual_s = self._e_residual_s + self._price.slope_s * (self._to - 1) if self._in_flight else 0.0
            first_gap_s, gap_s, e_slope_s, e_steps, left_s = plan_ahead(
                residual_s, host_s, load_s, gpu_s, slope_s, launch_bound, tail_s, steps, sync_s, again_s
            )
        else:
            first_gap_s, gap_s, e_slope_s, e_steps, left_s = alternate(
                host_s, load_s, gpu_s, slope_s, launch_bound, tail_s, steps, sync_s, again_s
            )
        self._e_start_s, self._e_first_s, self._e_gap_s, self._e_slope_s = now_s, now_s + first_gap_s, gap_s, e_slope_s
        self._e_steps, self._e_residual_s = e_steps, left_s
        self._version = -1 if prefills else engine.version
        self._price = Price(
            host_s + sync_s, host_s if again_s < 0 else again_s, load_s, base_s, attention_s, lora_s, collective_s,
            slope_s, outside,
        )  # fmt: skip

    def _finish_run(self, end_s: float) -> None:
        """Correct the run's row, and hand out what came out while it lasted."""
        engine, log = self.engine, self.log
        steps = self._to - self._from
        if self._truncated:
            log.values[STEPS - ROW] = steps
            if self._from == 0:
                price = self._price
                log.values[HOST_S - ROW] = (price.host_s + (steps - 1) * price.again_s) / steps
        if self._late:
            self._count_late(end_s)
        if steps > 1 and engine.finishing and engine.asynchronous:
            gone = len(engine.finishing) * (end_s - self._first_s) / (end_s - self._start_s)
            log.values[RUNNING - ROW] = self._running - gone
        log.count += 1
        outside = self._price.outside
        if outside:
            log.outside_s[outside] = log.outside_s.get(outside, 0.0) + end_s - self._start_s
        plan, asynchronous = self._plan, engine.asynchronous
        if plan is None:
            first, finished = engine.commit(0, end_s)
            self._in_flight, self._first_weight = False, 0
        else:
            first, finished = engine.commit(steps, end_s)
            self._in_flight, self._first_weight = asynchronous, plan.decode_count
        if first or finished:
            self._deliver(first, finished, self._first_s if asynchronous else end_s)
            if finished and self.on_finished is not None:
                self.on_finished(end_s)
        for request in self._preempted:  # the token of the step in flight still came out
            self.requests.preempted_at_s[request] = self._first_s if asynchronous else self._start_s

    def _deliver(self, first: list[int], finished: list[int], now_s: float) -> None:
        requests, run = self.requests, self.log.count - 1
        token_s = now_s + self.latency.frontend_out_s(self._running)
        for request in first:
            if requests.first_token_s[request] != requests.first_token_s[request]:
                requests.first_token_s[request] = token_s
                requests.first_run[request] = run
            else:
                gap_s = now_s - requests.preempted_at_s[request]
                requests.interrupted[request] = (*requests.interrupted.get(request, ()), gap_s)
        for request in finished:
            requests.last_token_s[request] = token_s
            requests.last_run[request] = run
        self.finished += len(finished)
        self.outstanding -= len(finished)

    def _count_late(self, end_s: float) -> None:
        """Waiting requests by reason become averages over the run, those that came meanwhile included."""
        values, duration_s = self.log.values, end_s - self._start_s
        if duration_s > 0.0:
            for reason, time_s in self._late:
                values[WAITING + reason - ROW] += (end_s - time_s) / duration_s
        self._late = []
        self.engine.mark_skipped(self._boundary(self._to - 1))

    # --- views, and the end -------------------------------------------------------------------------------------

    def cut(self, now_s: float) -> None:
        """The simulation ends at now_s, where `advance` has brought it: of the run in progress, the steps that ended by
        then have been."""
        if not self._busy:
            return
        index = index_after(self._e_start_s, self._e_first_s, self._e_gap_s, self._e_slope_s, now_s) - 1
        if not self._from < index < self._to:
            return
        end, boundary_s = self._to, self._boundary(index)
        self._late = [(reason, time_s) for reason, time_s in self._late if time_s < boundary_s]
        self._to, self._truncated = index, True
        self._finish_run(boundary_s)
        self.engine.repeat()
        self._from, self._to, self._late = index, end, []
        self._start_s = self.now_s = boundary_s
        self._first_s = self._boundary(index + 1)
        self._running = self.engine.num_running()

    def view_at(self, time_s: float) -> View:
        """State at time_s, which lies within the run in progress (or in the idle time until now)."""
        passed = 0
        if self._busy and self._to - self._from > 1:
            after = index_after(self._e_start_s, self._e_first_s, self._e_gap_s, self._e_slope_s, time_s)
            passed = max(after - 1 - self._from, 0)
        state, capacity = self.engine.state(passed), self.engine.capacity
        usage = 1.0 - state.free_blocks / capacity.kv_blocks
        outstanding = self.outstanding - state.finishing
        idle_s = time_s - self.now_s if not self._busy and outstanding == 0 else 0.0
        return View(state.running, state.waiting, usage, state.adapters, capacity.slots, outstanding, idle_s)
