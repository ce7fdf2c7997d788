"""One replica of an engine that plans a step when the tokens of the one before are out, in simulated time.

A run is a number of identical planned steps; it ends at the engine's horizon, or earlier at the first boundary after an
arrival that the next plan could admit. The replica goes from run to run by itself, up to the moment that somebody asks
about: an arrival, a view, the end.
"""

from __future__ import annotations

from typing import Any

from simlora.engines.base import NEVER_S, Engine
from simlora.engines.epoch import Epoch, open_alternating, open_empty
from simlora.engines.request import Request, Requests
from simlora.engines.run_log import RunLog, with_late
from simlora.engines.view import View
from simlora.latency.step import NOTHING_PLANNED, StepPlan

NOBODY = (0, 0, 0, 0)


class EngineReplica:
    """Drives one engine. Its state is that of `now_s`; `advance` brings it to another time."""

    def __init__(self, index: int, engine: Engine, latency: Any, requests: Requests, coalesce: bool = True) -> None:
        """latency: a StepLatency."""
        self.index, self.engine, self.latency, self.requests, self.coalesce = index, engine, latency, requests, coalesce
        self.log = RunLog()
        self.finished = self.rejected = self.outstanding = 0
        self.now_s = 0.0
        """The last boundary."""
        self.next_s = NEVER_S
        """The next one, if nothing comes in between."""
        self.on_boundary: Any = None
        """Called as on_boundary(replica, now_s) after every plan, for checks."""
        self.between_steps: Any = None
        """Called as between_steps(replica, now_s) when a run is over, before the next step is planned."""
        self.on_finished: Any = None
        """Called as on_finished(now_s) when requests are done or given up."""
        self._epoch: Epoch | None = None
        self._version = -1
        self._plan: StepPlan | None = None
        self._from = self._to = 0  # boundary indices of the run in its epoch
        self._asleep = False
        """Requests wait while nothing can be computed: the run in progress is empty, and lasts until the engine's
        wake_s, or an arrival that it can act on."""
        self._running = 0
        self._waiting: tuple[int, int, int, int] = NOBODY
        self._preemptions = 0
        self._preempted: list[Request] = []
        self._late: list[tuple[int, float]] = []  # (reason, time) of those that came during the run
        self._start_s = self._first_s = 0.0

    # --- arrivals -----------------------------------------------------------------------------------------------

    def enqueue(self, index: int, now_s: float) -> None:
        """A request reaches the engine; it is rejected if it could not even run alone."""
        self.advance(now_s)
        request = self.requests[index]
        request.replica = self.index
        if request.routed_s != request.routed_s:  # else it comes from another replica
            request.routed_s = now_s
        if not self.engine.fits(request):
            request.rejected = True
            self.rejected += 1
            return
        self.outstanding += 1
        could_admit = self.engine.enqueue(request, now_s)
        if self._epoch is None:
            self._play(now_s, now_s)
            return
        self._late.append((self.engine.arrival_reason, now_s))
        if could_admit:
            self._truncate_run(self._epoch, now_s)

    def expect(self, index: int, at_s: float) -> None:
        """A request will reach the engine at at_s, and nothing else before it."""
        self.enqueue(index, at_s)

    def _truncate_run(self, epoch: Epoch, now_s: float) -> None:
        """The run in progress ends at its next boundary; an empty one now."""
        if self._asleep:
            epoch.first_s = self._first_s = now_s
            self._play(now_s, now_s)
        elif self._to - self._from > 1:
            index = epoch.index_after(now_s)
            if index < self._to:
                self._to = max(index, self._from + 1)
                self.next_s = epoch.boundary(self._to)

    # --- handing over -------------------------------------------------------------------------------------------

    def end_run(self, now_s: float) -> None:
        """Call between_steps at the next boundary, which is then next_s."""
        if self._epoch is None:
            self.between_steps(self, now_s)
        else:
            self._truncate_run(self._epoch, now_s)

    def hand_over(self, request: Request, now_s: float, running: bool) -> None:
        """The engine does not have this request any more; its last token came out at now_s if it was running."""
        self.outstanding -= 1
        if running:
            request.preempted_at_s = now_s
        request.first_run = -1  # it counts runs of this replica

    # --- runs ---------------------------------------------------------------------------------------------------

    def advance(self, until_s: float) -> None:
        """Play every run that ends by until_s."""
        if self.next_s <= until_s:
            self._play(self.next_s, until_s)

    def _play(self, now_s: float, until_s: float) -> None:
        """now_s is the end of the run in progress, or the moment an idle replica got work."""
        while now_s <= until_s:
            if self._epoch is not None:
                self._finish_run(self._epoch, now_s)
            if self.between_steps is not None:
                self.between_steps(self, now_s)
            self.now_s = now_s
            self._start_run(now_s)
            if self._epoch is not None and self.on_boundary is not None:
                self.on_boundary(self, now_s)
            now_s = self.next_s

    def _start_run(self, now_s: float) -> None:
        """Plan the next run and find its end."""
        engine, epoch = self.engine, self._epoch
        self._plan = plan = engine.form_step(now_s)
        if engine.aborted:
            self._give_up(engine.aborted)
        start = 0
        self._asleep = False
        if plan is None:
            if not (engine.waiting_count() and engine.wake_s < NEVER_S):
                self._epoch, self.next_s = None, engine.wake_s
                return
            self._asleep = True
            epoch, steps, self._version = open_empty(now_s, engine.wake_s), 1, -1
        else:
            steps = plan.max_repeat if self.coalesce else 1
            if epoch is not None and engine.version == self._version and self._to < epoch.steps:
                start = self._to
            else:
                epoch = open_alternating(now_s, self.latency.price(plan))
                for request, (_, rank, tier) in zip(engine.loading if plan.loads else (), plan.loads, strict=True):
                    request.load_s += self.latency.load_s(rank, tier)
                self._version = -1 if plan.prefills else engine.version
        left = epoch.steps - start
        to = start + (steps if steps < left else left)
        if engine.wake_s < NEVER_S and to > start + 1:  # the first plan at or after that time may differ
            to = min(to, max(start + 1, epoch.index_at(engine.wake_s)))
        self._epoch, self._from, self._to = epoch, start, to
        self._start_s = now_s
        self._first_s = first_s = epoch.first_s if start == 0 else epoch.boundary(start + 1)
        self.next_s = first_s if to == start + 1 else epoch.boundary(to)
        self._preempted = engine.preempted
        self._running = engine.num_running()
        self._waiting = engine.waiting_by_reason() if engine.waiting_count() else NOBODY

    def _finish_run(self, epoch: Epoch, now_s: float) -> None:
        """The run is over: record it, and hand out what came out at its end."""
        self._record(epoch, now_s)
        first, finished = self.engine.commit(0 if self._plan is None else self._to - self._from, now_s)
        if first or finished:
            self._deliver(first, finished, now_s)
        for request in self._preempted:
            request.preempted_at_s = self._start_s

    def _give_up(self, aborted: list[Request]) -> None:
        for request in aborted:
            request.rejected = True
        self.rejected += len(aborted)
        self.outstanding -= len(aborted)
        if self.on_finished is not None:
            self.on_finished(self.now_s)

    def _record(self, epoch: Epoch, end_s: float) -> None:
        """Append the run's row, in the order of RUN_COLUMNS."""
        plan, engine, log = self._plan or NOTHING_PLANNED, self.engine, self.log
        start, steps, start_s = self._from, self._to - self._from, self._start_s
        waiting: tuple[float, ...] = self._waiting
        if self._late:
            waiting, self._late = with_late(waiting, self._late, start_s, end_s), []
            engine.mark_skipped(epoch.boundary(self._to - 1))
        prefills, count, context, tokens, _, adapters, lora_tokens, rank, *_ = plan
        padded = lora_tokens * rank
        host, load, base, attention, lora, collective, slope, _, _, _, outside, sync, again = epoch.timing
        again = host if again < 0 else again
        if start:
            load, host, attention = 0.0, again, attention + slope * start
        else:
            host = (host + sync + (steps - 1) * again) / steps
        log.values.extend((
            start_s, self._first_s - start_s, count, epoch.gap_s + epoch.slope_s * start, epoch.slope_s, steps,
            count, len(prefills), tokens - count * engine.tokens_per_decode, context, self._running, *waiting, adapters,
            engine.used_blocks(), host, load, base, attention, lora, collective,
            (padded - engine.rank_tokens) / padded if padded else 0.0, engine.preemptions - self._preemptions,
        ))  # fmt: skip
        self._preemptions = engine.preemptions
        if outside:
            log.outside_s[outside] = log.outside_s.get(outside, 0.0) + end_s - start_s

    def _deliver(self, first: list[Request], finished: list[Request], now_s: float) -> None:
        run = self.log.count - 1
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

    # --- views, and the end -------------------------------------------------------------------------------------

    def cut(self, now_s: float) -> None:
        """The simulation ends at now_s, where `advance` has brought it: of the run in progress, the steps that ended by
        then have been."""
        epoch = self._epoch
        if epoch is None:
            return
        index = epoch.index_after(now_s) - 1
        if not self._from < index < self._to:
            return
        end, boundary_s = self._to, epoch.boundary(index)
        self._late = [(reason, time_s) for reason, time_s in self._late if time_s < boundary_s]
        self._to = index
        self._finish_run(epoch, boundary_s)
        self.engine.repeat()
        self._from, self._to, self._late = index, end, []
        self._start_s = self.now_s = boundary_s
        self._first_s = epoch.boundary(index + 1)
        self._running = self.engine.num_running()

    def view_at(self, time_s: float) -> View:
        """State at time_s, which lies within the run in progress (or in the idle time until now)."""
        epoch, passed = self._epoch, 0
        if epoch is not None and self._to - self._from > 1:
            passed = max(epoch.index_after(time_s) - 1 - self._from, 0)
        state, capacity = self.engine.state(passed), self.engine.capacity
        usage = 1.0 - state.free_blocks / capacity.kv_blocks
        outstanding = self.outstanding - state.finishing
        idle_s = time_s - self.now_s if epoch is None and outstanding == 0 else 0.0
        return View(state.running, state.waiting, usage, state.adapters, capacity.slots, outstanding, idle_s)
