"""An engine driven by hand, one plan at a time."""

from __future__ import annotations

from collections.abc import Sequence

from support.fakes import columns_of, make_tiers

from simlora.engines.request import Request
from simlora.engines.request_columns import RequestColumns
from simlora.engines.vllm.batch import VllmLimits
from simlora.engines.vllm.scheduler import VllmScheduler
from simlora.latency.step import StepPlan


def limits(**changes: object) -> VllmLimits:
    """Little binds unless it is asked for."""
    values: dict[str, object] = {
        "max_num_seqs": 8, "max_num_batched_tokens": 100, "kv_blocks": 1000, "block_size": 1, "max_loras": 4,
        "max_lora_rank": 64, "async_scheduling": False,
    } | changes  # fmt: skip
    return VllmLimits(**values)  # type: ignore[arg-type]


def append(requests: RequestColumns, request: Request) -> int:
    """One more request, whose number is returned."""
    one = columns_of([request])
    for name in dir(one):
        if isinstance(column := getattr(one, name), list):
            getattr(requests, name).extend(column)
    return len(requests) - 1


class Stepper:
    """Plans steps at times 0, 1, 2, ... and commits each before the next."""

    def __init__(self, engine_limits: VllmLimits, host: int | None = None) -> None:
        tiers = make_tiers(engine_limits, host) if engine_limits.max_loras else None
        self.requests = columns_of([])
        self.engine = VllmScheduler(engine_limits, self.requests, tiers)
        self.now_s = 0.0

    def add(self, *rows: Sequence[int]) -> list[bool]:
        """Enqueue requests of (adapter, prompt, output); returns what enqueue said."""
        could = []
        for adapter, prompt, output in rows:
            request = append(self.requests, Request(0, self.now_s, adapter, 8 * adapter, prompt, output))
            self.requests.routed_s[request] = self.now_s
            could.append(self.engine.enqueue(request, self.now_s))
        return could

    def step(self, steps: int = 1) -> StepPlan | None:
        """One plan, committed as having run for `steps` steps. Its deliveries are in first and finished."""
        plan = self.engine.form_step(self.now_s)
        self.now_s += 1.0
        self.first, self.finished = self.engine.commit(steps if plan else 0, self.now_s)
        return plan

    def admissions(self, most: int = 1000) -> list[int]:
        """Step until all is done; the order in which requests began a prefill from its first token."""
        order = []
        for _ in range(most):
            plan = self.step()
            if plan is not None:
                order += [request for request, start, _ in plan.prefills if start == 0]
            elif not self.engine.running:
                return order
        raise AssertionError("does not end")


def chunks(plan: StepPlan | None) -> list[tuple[int, int, int]]:
    return [] if plan is None else [tuple(prefill) for prefill in plan.prefills]
