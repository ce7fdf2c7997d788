"""One engine replica in simulated time: plan a step, price it, jump to where the batch changes.

A run is a number of identical planned steps; it ends at the scheduler's horizon, or earlier at the first boundary after
an arrival that the next plan could admit. While no other event is due, the replica goes from run to run without going
through the event queue.
"""

from __future__ import annotations

from array import array
from typing import Any

from simlora.cluster.view import View
from simlora.engines.base import NEVER_S, Engine
from simlora.engines.request import Request
from simlora.latency.step import NOTHING_PLANNED, StepPlan
from simlora.latency.step_latency import StepLatency
from simlora.sim.clock import STEP_END, Clock
from simlora.sim.epoch import Epoch, open_async, open_drain, open_sync

NOBODY = (0, 0, 0, 0)


class Replica:
    """Drives one engine. All state is read through `advance_to` or `view`."""

    def __init__(self, index: int, engine: Engine, latency: StepLatency, clock: Clock, coalesce: bool = True) -> None:
        self.index, self.engine, self.latency, self.clock, self.coalesce = index, engine, latency, clock, coalesce
        self.asynchronous = engine.asynchronous
        self.runs = array("d")
        """RUN_COLUMNS of one run after the other."""
        self.num_runs = 0
        self._preemptions = 0
        self._preempted: list[Request] = []
        self.extrapolated_s: dict[str, float] = {}
        """Latency term -> simulated seconds priced outside its measured range."""
        self.finished = 0
        self.rejected = 0
        self.outstanding = 0
        self.now_s = 0.0
        """The last boundary."""
        self.on_boundary: Any = None
        """Called as on_boundary(replica, now_s) after every plan, for checks."""
        self._generation = 0
        self._epoch: Epoch | None = None
        self._version = -1
        self._plan: StepPlan | None = None
        self._from = self._to = 0  # boundary indices of the run in its epoch
        self._first_weight = 0  # decoding requests of the step in flight at the run's start
        self._in_flight = False
        self._asleep = False
        """Requests wait while nothing can be computed: the run in progress is empty, and lasts until the engine's
        wake_s, or an arrival that it can act on."""
        self._running = 0
        self._waiting: tuple[int, int, int, int] = NOBODY
        self._late: list[tuple[int, Request]] = []  # (reason, request) of those that came during the run
        self._start_s = self._first_s = self._end_s = 0.0
        self.before_change: Any = None
        """Called as before_change(replica, now_s) before the state changes: stale views take their snapshots here."""
        self.between_steps: Any = None
        """Called as between_steps(replica, now_s) when a run is over, before the next step is planned."""
        self.on_finished: Any = None
        """Called as on_finished(now_s) when requests are done or given up."""

    # --- arrivals -----------------------------------------------------------------------------------------------

    def accepts(self, request: Request, now_s: float) -> bool:
        """Take note of an arrival; False: it could not run even alone, and is rejected."""
        request.replica, request.queued_s = self.index, now_s
        if request.routed_s != request.routed_s:  # else it comes from another replica
            request.routed_s = now_s
        if self.before_change is not None:
            self.before_change(self, now_s)
        if not self.engine.fits(request):
            request.rejected = True
            self.rejected += 1
            return False
        self.outstanding += 1
        return True

    def enqueue(self, request: Request, now_s: float) -> None:
        if not self.accepts(request, now_s):
            return
        could_admit = self.engine.enqueue(request, now_s)
        epoch = self._epoch
        if epoch is None:
            self._generation += 1  # an idle engine may have asked to be woken later
            self._go(now_s)
            return
        self._late.append((self.engine.arrival_reason, request))
        if could_admit:
            self._cut(epoch, now_s)

    def _cut(self, epoch: Epoch, now_s: float) -> None:
        """The run in progress ends at its next boundary; an empty one now."""
        if self._asleep:
            epoch.first_s = self._first_s = self._end_s = now_s
            self._generation += 1
            self._go(now_s)
        elif self._to - self._from > 1:
            index = epoch.index_after(now_s)
            if index < self._to:
                self._to = max(index, self._from + 1)
                self._end_s = end_s = epoch.boundary(self._to)
                if end_s > self.clock.peek():
                    self._schedule(end_s)
                else:
                    self._generation += 1
                    self._go(end_s)

    # --- handing over -------------------------------------------------------------------------------------------

    def end_run(self, now_s: float) -> None:
        """Call between_steps at the next boundary."""
        if self._epoch is None:
            self.between_steps(self, now_s)
        else:
            self._cut(self._epoch, now_s)

    def hand_over(self, request: Request, now_s: float, running: bool) -> None:
        """The engine does not have this request any more; its last token came out at now_s if it was running."""
        self.outstanding -= 1
        if running:
            request.preempted_at_s = now_s
        request.first_run = -1  # it counts runs of this replica

    # --- the run in progress ------------------------------------------------------------------------------------

    def _wake(self, event: Any) -> None:
        if event.value == self._generation:
            self._go(self._end_s)

    def _schedule(self, time_s: float) -> None:
        self._generation += 1
        self.clock.at(time_s, STEP_END, self._wake, self._generation)

    def _go(self, now_s: float) -> None:
        """now_s is the end of the run, or the moment an idle replica got work."""
        peek = self.clock.peek
        while True:
            if self.before_change is not None:
                self.before_change(self, now_s)
            if self._epoch is not None:
                self._close(now_s)
            if self.between_steps is not None:
                self.between_steps(self, now_s)
            self.now_s = now_s
            self._open(now_s)
            if self._epoch is None:
                self._sleep()
                return
            if self.on_boundary is not None:
                self.on_boundary(self, now_s)
            now_s = self._end_s
            if now_s > peek():
                self._schedule(now_s)
                return

    def _sleep(self) -> None:
        """Nothing to compute and nobody waits; the engine may want to look again at a time of its own."""
        if self.engine.wake_s < NEVER_S:
            self._end_s = self.engine.wake_s
            self._schedule(self._end_s)

    def _open(self, now_s: float) -> None:
        """Plan the next run and find its end."""
        engine, epoch = self.engine, self._epoch
        plan = engine.form_step(now_s)
        if engine.aborted:
            self._give_up(engine.aborted)
        start = 0
        self._asleep = False
        if plan is None:
            if self._in_flight:
                assert epoch is not None
                epoch = open_drain(now_s, epoch.residual(self._to))
            elif engine.waiting_count() and engine.wake_s < NEVER_S:
                self._asleep = True
                epoch = open_drain(now_s, engine.wake_s - now_s)
                epoch.first_s = engine.wake_s
            else:
                self._epoch = None
                return
            steps = 1
            self._version = -1
        else:
            steps = plan.max_repeat if self.coalesce else 1
            if epoch is not None and engine.version == self._version and self._to < epoch.steps:
                start = self._to
            else:
                epoch = self._new_epoch(plan, now_s)
                self._version = -1 if plan.prefills else engine.version
        left = epoch.steps - start
        self._epoch, self._plan, self._from = epoch, plan, start
        to = start + (steps if steps < left else left)
        if engine.wake_s < NEVER_S and to > start + 1:  # the first plan at or after that time may differ
            to = min(to, max(start + 1, epoch.index_at(engine.wake_s)))
        self._to = to
        self._start_s = now_s
        self._first_s = first_s = epoch.first_s if start == 0 else epoch.boundary(start + 1)
        self._end_s = first_s if to == start + 1 else epoch.boundary(to)
        self._preempted = engine.preempted
        self._running = engine.inside()
        self._waiting = engine.waiting_by_reason() if engine.waiting_count() else NOBODY

    def _new_epoch(self, plan: StepPlan, now_s: float) -> Epoch:
        timing = self.latency.price(plan)
        if plan.loads:
            for request, (_, rank, tier) in zip(self.engine.loading, plan.loads, strict=True):
                request.load_s += self.latency.load_s(rank, tier)
        if not self.asynchronous:
            return open_sync(now_s, timing)
        in_flight = self._epoch is not None and self._in_flight
        return open_async(now_s, self._epoch.residual(self._to) if in_flight else 0.0, timing)  # type: ignore[union-attr]

    def _close(self, now_s: float) -> None:
        """The run is over: record it, and hand out what came out while it lasted."""
        plan, engine = self._plan, self.engine
        self._record(now_s)
        if plan is None:
            first, finished = engine.commit(0, now_s)
            self._in_flight, self._first_weight = False, 0
        else:
            first, finished = engine.commit(self._to - self._from, now_s)
            self._in_flight, self._first_weight = self.asynchronous, plan.decode_count
        if first or finished:
            self._deliver(first, finished, self._first_s if self.asynchronous else now_s)
        for request in self._preempted:  # the token of the step in flight still came out
            request.preempted_at_s = self._first_s if self.asynchronous else self._start_s

    def _give_up(self, aborted: list[Request]) -> None:
        for request in aborted:
            request.rejected = True
        self.rejected += len(aborted)
        self.outstanding -= len(aborted)
        if self.on_finished is not None:
            self.on_finished(self.now_s)

    def _record(self, end_s: float) -> None:
        """Append the run's row, in the order of RUN_COLUMNS."""
        epoch, plan, engine = self._epoch, self._plan or NOTHING_PLANNED, self.engine
        assert epoch is not None
        start, steps, start_s, first_s = self._from, self._to - self._from, self._start_s, self._first_s
        running: float = float(self._running)
        waiting: tuple[float, ...] = self._waiting
        if self._late:
            waiting = self._late_arrivals(epoch.boundary(self._to - 1), end_s)
        if steps > 1 and self.asynchronous and (leaving := engine.leaving_count()):
            running -= leaving * (end_s - first_s) / (end_s - start_s)
        prefills, count, context, tokens, _, adapters, lora_tokens, rank, *_ = plan
        padded = lora_tokens * rank
        host, load, base, attention, lora, collective, slope, _, _, _, outside, sync, again = epoch.timing
        again = host if again < 0 else again
        if start:
            load, host, attention = 0.0, again, attention + slope * start
        else:
            host = (host + sync + (steps - 1) * again) / steps
        self.runs.extend((
            start_s, first_s - start_s, self._first_weight if start == 0 and self.asynchronous else count,
            epoch.gap_s + epoch.slope_s * start, epoch.slope_s, steps,
            count, len(prefills), tokens - count * engine.tokens_per_decode, context, running, *waiting, adapters,
            engine.used_blocks(), host, load, base, attention, lora, collective,
            (padded - engine.rank_tokens) / padded if padded else 0.0, engine.preemptions - self._preemptions,
        ))  # fmt: skip
        self._preemptions = engine.preemptions
        self.num_runs += 1
        for term in outside:
            self.extrapolated_s[term] = self.extrapolated_s.get(term, 0.0) + end_s - start_s

    def _deliver(self, first: list[Request], finished: list[Request], now_s: float) -> None:
        run = self.num_runs - 1
        token_s = now_s + self.latency.frontend_out_s(self._running)
        for request in first:
            if request.first_token_s != request.first_token_s:
                request.first_token_s = token_s
                request.first_run = run
            else:
                request.interrupted += (now_s - request.preempted_at_s,)
        for request in finished:
            request.last_token_s = token_s
            request.last_run = run
        self.finished += len(finished)
        self.outstanding -= len(finished)
        if finished and self.on_finished is not None:
            self.on_finished(now_s)

    def _late_arrivals(self, last_plan_s: float, end_s: float) -> tuple[float, ...]:
        """Time averages over the run of the waiting requests by reason, those that came meanwhile included."""
        late, self._late = self._late, []
        averages = [float(count) for count in self._waiting]
        duration = end_s - self._start_s
        if duration > 0.0:
            for reason, request in late:
                averages[reason] += (end_s - request.queued_s) / duration
        self.engine.pass_over(last_plan_s)
        return tuple(averages)

    # --- views --------------------------------------------------------------------------------------------------

    def advance_to(self, now_s: float) -> None:
        """Commit every step that ended by now_s, so that the engine's state is that of now_s (end of a run, faults)."""
        epoch = self._epoch
        if epoch is None:
            return
        index = epoch.index_after(now_s) - 1
        if self._from < index < self._to:
            self._split(epoch, index)

    def _split(self, epoch: Epoch, index: int) -> None:
        """End the run at a boundary that has passed; what follows is a run of the same plan."""
        end, boundary_s = self._to, epoch.boundary(index)
        came_later = [item for item in self._late if item[1].queued_s >= boundary_s]
        self._late = [item for item in self._late if item[1].queued_s < boundary_s]
        self._to = index
        self._close(boundary_s)
        self._late = came_later
        assert self._plan is not None
        self._plan = self._plan._replace(decode_context_tokens=self.engine.repeat())
        self._from, self._to = index, end
        self._start_s = self.now_s = boundary_s
        self._first_s = epoch.boundary(index + 1)
        self._running = self.engine.inside()
        waiting = list(self.engine.waiting_by_reason())
        for reason, _ in came_later:
            waiting[reason] -= 1
        self._waiting = waiting[0], waiting[1], waiting[2], waiting[3]

    def view_at(self, time_s: float) -> View:
        """State at time_s, which lies within the run in progress (or in the idle time until now)."""
        epoch, passed = self._epoch, 0
        if epoch is not None and self._to - self._from > 1:
            passed = max(epoch.index_after(time_s) - 1 - self._from, 0)
        state, capacity = self.engine.state(passed), self.engine.capacity
        usage = 1.0 - state.free_blocks / capacity.kv_blocks
        outstanding = self.outstanding - state.leaving
        idle_s = time_s - self.now_s if epoch is None and outstanding == 0 else 0.0
        return View(state.running, state.waiting, usage, state.adapters, capacity.slots, outstanding, idle_s)
