"""vLLM over kernels that do not pad: the same schedule, and plans that tell their adapters' ranks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hypothesis import given

sys.path.append(str(Path(__file__).parents[1]))

from support.cases import LATENCIES, REBUILDING, Case, cases, examples
from support.compare import life
from support.engine_laws import assert_modes_agree, play

from simlora.engines.active_adapters import ActiveAdapters
from simlora.engines.request_columns import RequestColumns
from simlora.engines.vllm.scheduler import VllmScheduler
from simlora.latency.step import AdapterMix, StepPlan, StepTiming

ALL = (*LATENCIES.values(), *REBUILDING.values())


class Watching:
    """Passes plans on to a latency model, and keeps them."""

    def __init__(self, latency: Any) -> None:
        self.latency = latency
        self.plans: list[tuple[StepPlan, list[tuple[Any, int]]]] = []
        self.engine: Any = None
        self.frontend_in_s = latency.frontend_in_s
        self.frontend_out_s, self.load_s = latency.frontend_out_s, latency.load_s

    def price(self, plan: StepPlan) -> StepTiming:
        engine = self.engine
        prompts = {prefill.request: prefill.new_tokens for prefill in plan.prefills}
        finishing = dict(engine.finishing)
        batch = [(engine.requests[r], prompts.get(r, 1)) for r in engine.running if r not in finishing]
        self.plans.append((plan, batch))
        return self.latency.price(plan)  # type: ignore[no-any-return]


def recounted(plan: StepPlan, batch: list[tuple[Any, int]]) -> AdapterMix | None:
    ranks = {request.adapter: request.rank for request, _ in batch if request.adapter}
    if not ranks:
        return None
    return AdapterMix(
        sum(ranks.values()),
        sum(request.rank * tokens for request, tokens in batch),
        max(ranks.values()),
        len(set(ranks.values())),
    )


def ranked(case: Case, requests: RequestColumns) -> VllmScheduler:
    return VllmScheduler(case.limits, requests, case.tiers(), ranks=ActiveAdapters())


@examples(100)
@given(cases(latencies=ALL))
def test_every_plan_tells_the_ranks_of_its_batch(case: Case) -> None:
    latency, requests = Watching(case.latency), case.requests()
    latency.engine = engine = ranked(case, requests)
    play(lambda _: engine, requests, latency, coalesce=False)
    for plan, batch in latency.plans:
        mix = recounted(plan, batch)
        assert plan.mix == mix
        assert plan.max_rank == (mix.max_rank if mix else 0)
        assert plan.num_adapters == len({request.adapter for request, _ in batch} - {0})


@examples(100)
@given(cases(latencies=ALL))
def test_the_schedule_is_vllms(case: Case) -> None:
    """Step times that do not depend on ranks give the same run."""
    one = play(lambda requests: ranked(case, requests), case.requests(), case.latency)
    other = play(lambda requests: VllmScheduler(case.limits, requests, case.tiers()), case.requests(), case.latency)
    assert [life(r) for r in one.requests] == [life(r) for r in other.requests]


@examples(60)
@given(cases(latencies=ALL))
def test_coalesced_as_step_by_step(case: Case) -> None:
    assert_modes_agree(lambda requests: ranked(case, requests), case.requests, case.latency)
