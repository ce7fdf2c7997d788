"""vLLM's scheduler with pipeline stages: up to one batch per stage is in flight.

Follows vllm/v1/engine/core.py (`EngineCore.step_with_batch_queue`) and scheduler.py. A request whose token is still on
its way has nothing to compute, so a batch takes whoever is out of flight: the requests of the batch that just came
back, and new ones. One batch comes back at a time and is planned again at once; batches in flight thus keep their
requests (a lane), and two of them never merge. A new lane begins where the queue of batches has room and something
can be computed: requests that came while the last batch was planned, or prompts beyond its token budget. The chunks of
a long prompt follow one another through the stages, each in the next batch, without waiting for the one before.

Lanes share max_num_seqs, KV blocks, the waiting queue and the adapter slots (lane_slots.py). A prompt whose adapter
finds no place in the batch goes on in one of its own lane, and nobody is admitted before it. A request that loses its
memory while it is in flight still gets the token of that flight, and waits again from then on.

Asynchronous scheduling, speculative decoding and copies on a side stream are not modelled together with stages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from simlora.engines.base import TOKENS, State
from simlora.engines.decode_batch import DecodeBatch
from simlora.engines.request_columns import RequestColumns
from simlora.engines.vllm.batch import VllmLimits
from simlora.engines.vllm.lane_slots import Lane, LaneSlots
from simlora.engines.vllm.lanes_check import violations
from simlora.engines.vllm.prefix_cache import PrefixCache
from simlora.engines.vllm.scheduler import Load, VllmScheduler
from simlora.latency.step import StepPlan
from simlora.memory.residents import AdapterTiers


class PipelineScheduler(VllmScheduler):
    """Plans one of several lanes at a time; `lane` is the one that its plain attributes belong to."""

    def __init__(
        self,
        limits: VllmLimits,
        requests: RequestColumns,
        tiers: AdapterTiers | None,
        stages: int,
        prefix_cache: PrefixCache | None = None,
    ) -> None:
        self.lanes = [Lane(DecodeBatch(limits.block_size)) for _ in range(stages)]
        self.lane = self.lanes[0]
        super().__init__(replace(limits, async_scheduling=False), requests, tiers, self.lane.decodes, prefix_cache)
        self.lane_slots = LaneSlots(limits.max_loras, limits.pinned, tiers, self.waiting, self.lanes)
        self.slots = self.lane_slots
        self.flights: deque[Lane] = deque()
        """Lanes in flight, oldest first."""
        self.batches = 0
        self.detached: list[int] = []
        """Requests of the batch that came back last which were preempted in flight."""
        self.partial_lane = self.lane
        """Where the half-done prompt holds its adapter."""
        self._home: dict[int, Lane] = {}
        """Lane of each decoding request that runs."""
        self._request_of: dict[int, int] = {}
        """Adapter -> a request of it."""
        self._last_lane = self.lane
        self._held = False
        """The half-done prompt finds no place for its adapter in the batch being planned."""

    # --- planning -----------------------------------------------------------------------------------------------

    def form_step(self, now_s: float) -> StepPlan | None:
        """Plan the next batch; None when every lane is in flight, or nobody out of flight has anything to compute."""
        lane = self._free_lane()
        self.preempted = []
        if lane is None or not (lane.decodes.count or self.waiting.size or self.partial >= 0):
            return None
        self._bind(lane)
        version, planned_version = self.version, self.planned_version
        if self._last_lane is not lane:
            self.planned_version = -1  # the workers mapped the tokens of another batch since
        plan = super().form_step(now_s)
        if plan is None:
            self.planned_version = planned_version
            if lane is not self._last_lane:
                self._keep_planned(lane, planned_version == version)
            return None
        lane.flying, lane.batch = True, self.batches
        self.batches += 1
        self.flights.append(lane)
        self._last_lane = lane
        if not plan.loads:
            self.loading = []
        reloads = tuple(self._reload(adapter, now_s) for adapter in self.lane_slots.missing())
        return plan._replace(loads=plan.loads + reloads) if reloads else plan

    def _free_lane(self) -> Lane | None:
        """The lane that is out of flight with requests in it (there is one at most), else an empty one."""
        free = None
        for lane in self.lanes:
            if not lane.flying:
                if lane.decodes.count:
                    return lane
                free = free or lane
        return free

    def _bind(self, lane: Lane) -> None:
        old = self.lane
        if lane is old:
            return
        old.step, old.first = self.step, self.planned_first
        self.lane, self.decodes = lane, lane.decodes
        self.step, self.planned_first = lane.step, lane.first
        self.lane_slots.bind(lane)

    def _reload(self, adapter: int, now_s: float) -> Load:
        rank = self.requests.rank[self._request_of[adapter]]
        self.loads_by_rank[rank] = self.loads_by_rank.get(rank, 0) + 1
        return adapter, rank, self.lane_slots.restore(adapter, now_s)

    def _horizon(self, step: int, count: int) -> int:
        return 1

    def _continue_partial(self, budget: int, chunks: list[tuple[int, int]], step: int, now_s: float) -> bool:
        adapter = self.requests.adapter[self.partial]
        self._held = False
        if adapter and self.partial_lane is not self.lane and self.slots.full and not self.slots.serves(adapter):
            self._held = True
            return True
        kept = super()._continue_partial(budget, chunks, step, now_s)
        if chunks and self.partial_lane is not self.lane:
            if adapter:
                self.lane_slots.move(adapter, self.partial_lane, self.lane, now_s)
            self.partial_lane = self.lane
        return kept

    def _admit(self, budget: int, chunks: list[tuple[int, int]], loads: list[Load], now_s: float) -> None:
        if self.partial >= 0 and self._held:
            self.loading, self.blocked, self._stands = [], TOKENS, True
            return
        super()._admit(budget, chunks, loads, now_s)

    def _start(self, request: int, loads: list[Load], now_s: float) -> None:
        self._request_of[self.requests.adapter[request]] = request
        super()._start(request, loads, now_s)

    def _keep_partial(self, request: int) -> None:
        super()._keep_partial(request)
        self.partial_lane = self.lane

    def _complete(self, request: int, step: int) -> None:
        super()._complete(request, step)
        self._home[request] = self.lane

    # --- what comes out -----------------------------------------------------------------------------------------

    def commit(self, steps: int, now_s: float) -> tuple[list[int], list[int]]:
        """The oldest batch in flight came back."""
        lane = self.flights.popleft()
        self._bind(lane)
        lane.flying, lane.returned_s = False, now_s
        planned = self.planned_version == self.version
        first, finished = super().commit(1, now_s)
        self._keep_planned(lane, planned)
        for request in finished:
            self._home.pop(request, None)
        self.detached, lane.detached = lane.detached, []
        for request in self.detached:
            self.waiting.push_preempted(request)
        return first, finished

    def _keep_planned(self, changed: Lane, planned: bool) -> None:
        """The batch planned last is still what the workers have mapped, unless it is the one that changed."""
        if planned and changed is not self._last_lane:
            self.planned_version = self.version

    # --- KV pressure --------------------------------------------------------------------------------------------

    def _grow_with_preemption(self, step: int, now_s: float) -> bool:
        """As in VllmBatch; requests in flight need nothing, but can lose what they have."""
        order, preempted, position = list(self.running), False, 0
        while position < len(order):
            request = order[position]
            position += 1
            planned = self._home.get(request) is self.lane
            need = self.decodes.request_growth(request, step) if planned else 0
            while self.kv.free < need:
                victim = order.pop()
                preempted = True
                self._take_from(victim, step, now_s)
                if victim == request:
                    return True
            self.kv.take(need)
        return preempted

    def _take_from(self, victim: int, step: int, now_s: float) -> None:
        home = self._home.get(victim)
        if home is None or home is self.lane:
            self._preempt(victim, step, now_s)
        elif (last := home.decodes.last_step(victim)) <= home.step:
            del self._home[victim]
            self._strip(victim, home.decodes.blocks(victim, last))
        else:
            self._detach(victim, home, now_s)

    def _preempt(self, request: int, step: int, now_s: float) -> None:
        here = self.lane
        if request == self.partial:
            self._bind(self.partial_lane)
        super()._preempt(request, step, now_s)
        self._bind(here)
        self._home.pop(request, None)

    def _detach(self, request: int, home: Lane, now_s: float) -> None:
        """Take the memory of a request in flight, whose next token will come out all the same."""
        planned = self.planned_version == self.version
        self.version += 1
        self._keep_planned(home, planned)
        del self.running[request], self._home[request]
        emitted = home.decodes.emitted(request, home.step + 1)
        self.kv.give_back(request, home.decodes.blocks(request, home.step))
        home.decodes.remove(request)
        self._forget_progress(request, self.requests.prefill_tokens[request] + emitted - 1, emitted)
        home.detached.append(request)
        adapter = self.requests.adapter[request]
        if adapter:
            here = self.lane
            self._bind(home)
            self.slots.leave(adapter, now_s)
            self._bind(here)

    # --- views --------------------------------------------------------------------------------------------------

    def home_of(self, request: int) -> Lane | None:
        """The lane that a running request decodes in; None while its prompt is half done."""
        return self._home.get(request)

    def num_running(self) -> int:
        in_lanes = sum(lane.decodes.count + len(lane.detached) for lane in self.lanes)
        return in_lanes + (self.partial >= 0)

    def state(self, steps: int) -> State:
        adapters = frozenset(adapter for lane in self.lanes for adapter in lane.active)
        return State(len(self.running), self.waiting.size, self.kv.free, adapters, 0)

    def violations(self) -> Iterator[tuple[str, str]]:
        return violations(self)
