"""The state of a vLLM replica between two changes: the run in progress, and those who wait for what it does.

A run is a number of identical planned steps. It ends at the scheduler's horizon, or earlier at the first boundary after
an arrival that the next plan could admit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from simlora.engines.base import NEVER_S
from simlora.engines.run_log import RunLog
from simlora.engines.vllm.scheduler import VllmScheduler
from simlora.latency.step import StepPlan
from simlora.latency.step_latency import PriceTable

NOBODY: Sequence[int] = ()
NOBODY_WAITS = (0, 0, 0, 0)
Hook = Callable[[Any, float], None]


Price = tuple[float, float, float, float, float, float, float, float, tuple[str, ...]]
"""Of the step that an epoch repeats: host time of the first one, read-back included, and of the later ones; loads; base
operators, attention, LoRA kernels, collectives; growth of the attention per step; terms outside their measured range.
"""
NO_PRICE: Price = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, ())


class RunState:
    """One scheduler, and the run that it has planned. Times are seconds."""

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
        self.on_boundary: Hook | None = None
        """Called as on_boundary(replica, now_s) after every plan, an empty one included, for checks."""
        self.on_finished: Callable[[float], None] | None = None
        """Called as on_finished(now_s) when requests are done."""
        self.inbox: list[int] = []
        """Requests that are expected, in the order in which they come, and when they do."""
        self.inbox_s: list[float] = []
        self.taken = 0
        """How many of them have come."""
        decodes, columns, limits = engine.decodes, self.requests, engine.limits
        self.parts = (
            engine, columns, prices, decodes, engine.kv, engine.waiting, engine.slots, decodes.heap, decodes.bins,
            decodes.members, engine.waiting.line, decodes.block_size, engine.running, engine.slots.active,
            self.log.values.frombytes, self.inbox_s, self.inbox, columns.replica, columns.routed_s,
            columns.admitted_s, columns.first_token_s, columns.last_token_s, columns.first_run, columns.last_run,
            columns.adapter, columns.rank, columns.prefill_tokens, columns.output_tokens, columns.emitted,
            limits.max_num_seqs, limits.max_num_batched_tokens, limits.kv_blocks * limits.block_size,
        )  # fmt: skip
        """What the loop is about."""
        self.light = engine.plain and engine.asynchronous and prices is not None
        """Steps of decodes alone are planned in the loop, without asking the scheduler."""
        self.busy = False
        self.plan: StepPlan | None = None
        """The last plan that the scheduler was asked for."""
        self.planned = False
        """The run in progress computes something."""
        self.asleep = False
        """Requests wait while nothing can be computed: the run in progress is empty, and lasts until the scheduler's
        wake_s, or an arrival that it can act on."""
        self.in_flight = False
        self.decode_count = self.first_weight = 0
        """Decoding requests of the run's step, and of the one in flight at its start."""
        self.priced_version = -1
        self.epoch = (0.0, 0.0, 0.0, 0.0)
        """Its first boundaries, their gap and its growth: see engines/epoch.py."""
        self.e_residual_s = 0.0
        self.e_steps = 0
        self.step_price = NO_PRICE
        self.start = self.end = 0
        """Boundaries of the epoch between which the run lies."""
        self.run_start_s = 0.0
        self.running = 0
        row: tuple[int, int, int, tuple[float, ...], int, int, float, int] = (0, 0, 0, NOBODY_WAITS, 0, 0, 0.0, 0)
        self.row_values = row
        """Of the run's row: prompts, their tokens, context, who waits by reason, adapters, KV blocks, share of rank
        padding, preemptions."""
        self.preempted: Sequence[int] = NOBODY
        self.preemptions = 0
        self.late: list[tuple[int, float]] = []
        """(reason, time) of those that came during the run."""

    def deliver(self, first: Sequence[int], finished: Sequence[int], now_s: float, running: int, run: int) -> None:
        """Tokens left the engine at now_s, in that run: the first one of some requests, the last one of others."""
        requests = self.requests
        token_s = now_s + self.latency.frontend_out_s(running)
        for request in first:
            if requests.first_token_s[request] != requests.first_token_s[request]:
                requests.first_token_s[request], requests.first_run[request] = token_s, run
            else:
                self.resume(request, now_s)
        for request in finished:
            requests.last_token_s[request], requests.last_run[request] = token_s, run

    def resume(self, request: int, now_s: float) -> None:
        """The first token after a preemption came out."""
        gap_s = now_s - self.requests.preempted_at_s[request]
        interrupted = self.requests.interrupted
        interrupted[request] = (*interrupted.get(request, ()), gap_s)

    def count_finished(self, finished: int, now_s: float) -> None:
        self.finished += finished
        self.outstanding -= finished
        if self.on_finished is not None:
            self.on_finished(now_s)
