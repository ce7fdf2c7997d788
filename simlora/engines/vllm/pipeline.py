"""A replica whose layers are spread over pipeline stages: batches follow one another through them.

Stage i of a batch begins when stage i - 1 of it and stage i of the batch before are done (plus the transfer between two
stages); within a stage, host and GPU alternate as in open_alternating. The engine's loop is one thread, as in vLLM
(`EngineCore.step_with_batch_queue`): it plans batches until the queue of batches is full or nobody has anything to
compute, and then waits for the oldest batch; what arrives meanwhile waits as well. How long the loop takes to plan is
not measured apart from the first stage's host time, which is taken for it: requests that come within that time find
room in a batch of their own.

One row of the log is one batch, from when the batch before came back (or its own plan, after an idle time) to when it
came back itself. Rows hold the parts of all stages together, transfers among the collectives. A stage that waits for
another one is idle: that time is nobody's GPU time.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple, Protocol

from simlora.engines.base import NEVER_S
from simlora.engines.epoch import open_alternating
from simlora.engines.run_log import RunLog
from simlora.engines.view import View
from simlora.engines.vllm.lane_slots import Lane
from simlora.engines.vllm.lanes import PipelineScheduler
from simlora.engines.vllm.replica import VllmReplica
from simlora.latency.overlap import PipelineTiming
from simlora.latency.step import StepPlan


class StagedLatency(Protocol):
    """What a pipeline asks of the latency model."""

    def price_stages(self, plan: StepPlan) -> PipelineTiming: ...
    def load_s(self, rank: int, tier: str) -> float: ...
    def frontend_out_s(self, running: int) -> float: ...


class Flight(NamedTuple):
    """A batch on its way through the stages."""

    plan: StepPlan
    timing: PipelineTiming
    lane: Lane
    done_s: float
    """When the last stage is done."""
    rank_tokens: int
    preemptions: int


class PipelineReplica(VllmReplica):
    """Drives a PipelineScheduler batch by batch; nothing is coalesced."""

    def __init__(self, index: int, engine: PipelineScheduler, latency: Any) -> None:
        """latency: a StepLatency that is a StagedLatency."""
        super().__init__(index, engine, latency)
        self.log = RunLog(len(engine.lanes))
        self.lanes_engine = engine
        self.staged: StagedLatency = latency
        self._stages_s = [0.0] * len(engine.lanes)
        """When each stage is done with the last batch sent into it."""
        self.flights: deque[Flight] = deque()
        self._free_s = 0.0
        """Until then the loop plans the last batch."""
        self._looks = False
        """At next_s it looks for another batch to plan; else it takes the oldest one."""
        self._row_start_s = self._counted_s = 0.0
        self._areas = [0.0] * 5
        """Integrals since the row's start: requests inside, and those waiting by reason."""
        self._counts: tuple[float, ...] = (0.0,) * 5

    # --- arrivals -----------------------------------------------------------------------------------------------

    def expect(self, request: int, at_s: float) -> None:
        self.enqueue(request, at_s)

    def enqueue(self, request: int, now_s: float) -> None:
        self.advance(now_s)
        self.requests.replica[request], self.requests.routed_s[request] = self.index, now_s
        if not self.engine.fits(request):
            self.requests.reject(request)
            self.rejected += 1
            return
        self.outstanding += 1
        self.engine.enqueue(request, now_s)
        if self.flights:
            self._integrate(now_s)
            counts = list(self._counts)
            counts[1 + self.engine.arrival_reason] += 1
            self._counts = tuple(counts)
            return
        self._row_start_s = self._counted_s = now_s
        self._free_s, self._looks = now_s, True
        self._turn(now_s)

    # --- the engine's loop --------------------------------------------------------------------------------------

    def advance(self, until_s: float) -> None:
        while self.next_s <= until_s:
            self._turn(self.next_s)

    def _turn(self, now_s: float) -> None:
        """One turn of the loop."""
        self.now_s = now_s
        if not self._looks:
            self._take_oldest(now_s)
        self._look(now_s)

    def _look(self, now_s: float) -> None:
        """Plan a batch, if there is one, and decide what the loop does next."""
        engine = self.lanes_engine
        self._integrate(now_s)
        plan = engine.form_step(now_s)
        if plan is not None:
            self._send(plan, now_s)
        for request in engine.preempted:
            self.requests.preempted_at_s[request] = now_s
        self._counts = (float(engine.num_running()), *map(float, engine.waiting_by_reason()))
        if plan is not None and self.on_boundary is not None:
            self.on_boundary(self, now_s)
        if not self.flights:
            self.next_s = NEVER_S
            return
        oldest_s = self.flights[0].done_s
        self._looks = plan is not None and len(self.flights) < len(self._stages_s) and oldest_s > self._free_s
        self.next_s = self._free_s if self._looks else max(oldest_s, self._free_s)

    def _send(self, plan: StepPlan, now_s: float) -> None:
        """Put the batch into the stages."""
        engine, timing = self.lanes_engine, self.staged.price_stages(plan)
        for request, (_, rank, tier) in zip(engine.loading, plan.loads, strict=False):
            self.requests.load_s[request] += self.staged.load_s(rank, tier)
        arrives_s = now_s
        for index, stage in enumerate(timing.stages):
            if index:
                arrives_s += timing.transfer_s
            arrives_s = open_alternating(max(arrives_s, self._stages_s[index]), stage).first_s
            self._stages_s[index] = arrives_s
        if not self.flights:
            self._row_start_s = self._counted_s = now_s
            self._areas = [0.0] * 5
        preemptions = engine.preemptions - self.preemptions
        self.preemptions = engine.preemptions
        self.flights.append(Flight(plan, timing, engine.lane, arrives_s, engine.rank_tokens, preemptions))
        self._free_s = now_s + timing.stages[0].host_s

    def _take_oldest(self, now_s: float) -> None:
        """The oldest batch is back: record it and hand out its tokens."""
        flight, engine = self.flights.popleft(), self.lanes_engine
        self._integrate(now_s)
        self._record_batch(flight, now_s)
        running = engine.num_running()
        first, finished = engine.commit(1, now_s)
        if first or finished:
            self.deliver(first, finished, now_s, running, self.log.count - 1)
            self.count_finished(len(finished), now_s)
        for request in engine.detached:
            self.requests.preempted_at_s[request] = now_s

    # --- the log ------------------------------------------------------------------------------------------------

    def _integrate(self, now_s: float) -> None:
        """Integrate the counts up to now."""
        elapsed = now_s - self._counted_s
        if elapsed > 0.0:
            self._areas = [area + elapsed * count for area, count in zip(self._areas, self._counts, strict=True)]
            self._counted_s = now_s

    def _record_batch(self, flight: Flight, end_s: float) -> None:
        """Append the batch's row, in the order of RUN_COLUMNS."""
        plan, timing, engine = flight.plan, flight.timing, self.lanes_engine
        start_s = self._row_start_s
        span_s = end_s - start_s
        inside, *waiting = (area / span_s if span_s > 0.0 else 0.0 for area in self._areas)
        stages = timing.stages
        base, attention, lora = (
            sum(s.base_s for s in stages),
            sum(s.attention_s for s in stages),
            sum(s.lora_s for s in stages),
        )
        collective = sum(s.collective_s for s in stages) + timing.transfer_s * (len(stages) - 1)
        host, load = sum(s.host_s + s.sync_s for s in stages), sum(s.load_s for s in stages)
        prefills, count, context, tokens, _, adapters, lora_tokens, rank, *_ = plan
        padded = lora_tokens * rank
        self.log.values.extend((
            start_s, span_s, count, 0.0, 0.0, 1,
            count, len(prefills), tokens - count * engine.tokens_per_decode, context, inside, *waiting, adapters,
            engine.kv.total - engine.kv.free, host, load, base, attention, lora, collective,
            (padded - flight.rank_tokens) / padded if padded else 0.0, flight.preemptions,
        ))  # fmt: skip
        self.log.lane.append(engine.lanes.index(flight.lane))
        self.log.token_gap_s.append(end_s - flight.lane.returned_s if count else span_s)
        if outside := stages[0].extrapolated:
            self.log.outside_s[outside] = self.log.outside_s.get(outside, 0.0) + span_s
        self._row_start_s = self._counted_s = end_s
        self._areas = [0.0] * 5

    # --- views --------------------------------------------------------------------------------------------------

    def cut(self, now_s: float) -> None:
        """Nothing is coalesced: the state is that of now."""

    def view_at(self, time_s: float) -> View:
        state, capacity = self.engine.state(0), self.engine.capacity
        usage = 1.0 - state.free_blocks / capacity.kv_blocks
        idle_s = time_s - self.now_s if not self.flights and self.outstanding == 0 else 0.0
        return View(state.running, state.waiting, usage, state.adapters, capacity.slots, self.outstanding, idle_s)
