"""vLLM with loads on a side stream, rule by rule."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1]))

from support.fakes import columns_of, make_tiers
from support.stepping import append, limits

from simlora.engines.base import NEVER_S, SLOTS
from simlora.engines.overlap_loading import OverlapLoading
from simlora.engines.request import Request
from simlora.engines.vllm.overlap import OverlappedScheduler
from simlora.errors import ConfigError
from simlora.latency.step import StepPlan
from simlora.memory.copies import CopyEngine, Stage
from simlora.scenario.load import scenario_from_dict
from simlora.sim.build import build_inputs
from simlora.sim.log import SimulationLog
from simlora.sim.simulate import simulate


class Line:
    """An engine whose copies take 4.5 s alone: half a second until bytes move, then 4 s on the link."""

    def __init__(self, prefetch: bool = False, host: int | None = None, **changes: object) -> None:
        self.limits = limits(**changes)
        self.tiers = make_tiers(self.limits, host)
        copies = CopyEngine({"host": 1.0, "disk": 1.0})
        self.requests = columns_of([])
        side = OverlapLoading(copies, self.stages)
        self.engine = OverlappedScheduler(self.limits, self.requests, self.tiers, side, prefetch)

    @staticmethod
    def stages(rank: int, tier: str) -> Sequence[Stage]:
        return (Stage("host", 4.0, 0.5),)

    def add(self, now_s: float, *rows: tuple[int, int, int]) -> list[bool]:
        """Enqueue requests of (adapter, prompt, output); returns what enqueue said."""
        said = []
        for adapter, prompt, output in rows:
            request = append(self.requests, Request(0, now_s, adapter, 8 * adapter, prompt, output))
            self.requests.routed_s[request] = now_s
            said.append(self.engine.enqueue(request, now_s))
        return said

    def step(self, now_s: float) -> StepPlan | None:
        plan = self.engine.form_step(now_s)
        self.engine.commit(1 if plan else 0, now_s)
        return plan

    def prompts(self, now_s: float) -> list[int]:
        plan = self.step(now_s)
        return [] if plan is None else [prefill.request for prefill in plan.prefills]


def test_a_request_waits_for_its_copy_and_the_others_do_not() -> None:
    line = Line()
    line.add(0.0, (1, 10, 5), (0, 10, 20))
    plan = line.step(0.0)
    assert plan is not None and [p.request for p in plan.prefills] == [1]
    assert plan.loads == () and plan.skipped == 1 and line.engine.wake_s == 0.5
    assert line.prompts(1.0) == [] and line.engine.wake_s == 4.5
    assert line.prompts(5.0) == [0]
    assert line.engine.wake_s == NEVER_S
    assert line.requests[0].load_tier == 2 and line.requests[0].load_s == 4.5


def test_steps_are_marked_while_bytes_cross_the_link() -> None:
    line = Line()
    line.add(0.0, (1, 10, 5), (0, 10, 20))
    plans = [line.step(now_s) for now_s in (0.0, 0.25, 0.5, 1.0, 4.0, 4.5)]
    assert [plan is not None and plan.copying for plan in plans] == [False, False, True, True, True, False]


def test_the_version_changes_with_the_copies_and_the_batch_does_not() -> None:
    line = Line()
    line.add(0.0, (1, 10, 5), (0, 10, 90))
    line.step(0.0), line.step(0.25)
    before = line.engine.version
    plan = line.step(0.5)
    assert plan is not None and not plan.batch_changed and line.engine.version > before
    after = line.engine.version
    plan = line.step(1.0)
    assert plan is not None and not plan.batch_changed and line.engine.version == after


def test_a_copy_has_its_slot_from_the_start_and_the_victim_is_gone() -> None:
    line = Line(max_loras=1, host=3)
    line.add(0.0, (1, 10, 1))
    line.step(0.0), line.step(4.5)
    assert list(line.tiers.slots) == [1]
    line.add(10.0, (2, 10, 1), (1, 10, 1))
    line.step(10.0)
    assert list(line.tiers.slots) == [2]
    assert line.engine.waiting_by_reason()[SLOTS] == 2
    assert line.prompts(12.0) == []  # adapter 1 finds no slot while 2 is on its way
    assert line.prompts(14.5) == [1]


def test_two_requests_of_an_adapter_share_one_copy() -> None:
    line = Line()
    line.add(0.0, (1, 10, 5), (1, 10, 5))
    line.step(0.0)
    assert line.add(1.0, (1, 10, 5)) == [False]
    assert line.prompts(4.5) == [0, 1, 2]
    assert line.engine.counters().loads_by_rank == {8: 1}
    assert line.engine.counters().tiers == (2, 0, 1, 0)


def test_copies_of_several_adapters_share_the_link() -> None:
    line = Line()
    line.add(0.0, (1, 10, 5), (2, 10, 5))
    line.step(0.0)
    assert line.prompts(8.4) == []
    assert line.prompts(8.5) == [0, 1]


def test_the_order_of_the_queue_is_kept() -> None:
    """Requests 0 and 2 wait for the same copy; request 3 needs none."""
    line = Line(max_num_batched_tokens=21)
    line.add(0.0, (1, 10, 2), (2, 10, 2), (1, 10, 2), (0, 10, 2))
    assert line.prompts(0.0) == [3]
    assert line.prompts(9.0) == [0, 1]
    assert line.prompts(10.0) == [2]


def test_without_prefetch_a_copy_waits_for_the_admission() -> None:
    """One seat: what stands behind it is not looked at."""
    for prefetch, loading in ((False, []), (True, [1])):
        line = Line(prefetch, max_num_seqs=1)
        line.add(0.0, (0, 10, 50))
        line.step(0.0)
        line.add(1.0, (1, 10, 5))
        line.step(1.0)
        assert list(line.engine.copies) == loading


def test_prefetch_starts_in_the_order_of_the_queue_as_far_as_slots_go() -> None:
    line = Line(True, max_loras=2, max_num_seqs=1)
    line.add(0.0, (0, 10, 50))
    line.step(0.0)
    line.add(1.0, (3, 10, 5), (1, 10, 5), (3, 10, 5), (2, 10, 5))
    line.step(1.0)
    assert list(line.engine.copies) == [3, 1]


def test_prefetch_does_not_evict_what_the_queue_wants() -> None:
    """Adapters 1 and 2 are idle in their slots; 1 is used longest ago, but wanted."""
    line = Line(True, max_loras=2, host=3, max_num_seqs=1)
    line.add(0.0, (1, 10, 1))
    line.step(0.0), line.step(4.5)
    line.add(5.0, (2, 10, 1))
    line.step(5.0), line.step(9.5)
    line.add(20.0, (0, 10, 50))
    line.step(20.0)
    line.add(21.0, (1, 10, 1), (3, 10, 1))
    line.step(21.0)
    assert set(line.tiers.slots) == {1, 3}


def test_an_adapter_that_was_there_when_the_request_came_and_is_not_when_its_turn_comes() -> None:
    line = Line(max_loras=1, host=3, kv_blocks=30)
    line.tiers.preload((), (1,))
    line.add(0.0, (0, 10, 15))
    line.step(0.0)
    line.add(1.0, (2, 2, 1), (1, 20, 1))
    line.step(1.0)
    assert line.prompts(5.5) == [1]
    line.step(6.5)
    for now_s in range(7, 20):
        line.step(float(now_s))
    assert line.prompts(30.0) == [2]


def test_an_arrival_that_can_be_prefetched_ends_the_run() -> None:
    line = Line(True, max_num_seqs=1)
    line.add(0.0, (0, 10, 50))
    line.step(0.0), line.step(1.0)
    assert line.add(2.0, (1, 10, 5), (0, 10, 5)) == [True, False]


# --- through the scenario -------------------------------------------------------------------------------------------


def scenario(engine: dict[str, Any], **adapters: Any) -> Any:
    return scenario_from_dict(
        {
            "model": "llama-3.1-8b", "gpu": "h200-141gb",
            "engine": {"max_loras": 4, "max_cpu_loras": 8, "max_lora_rank": 16, "max_model_len": 4096, **engine},
            "adapters": {"count": 8, "ranks": {8: 0.5, 16: 0.5}, **adapters},
            "workload": {
                "arrivals": {"kind": "poisson", "rate_rps": 10}, "num_requests": 150,
                "prompt_tokens": {"kind": "lognormal", "median": 200, "sigma": 0.7, "max": 2000},
                "output_tokens": {"kind": "lognormal", "median": 60, "sigma": 0.7, "max": 600},
            },
        }
    )  # fmt: skip


def run(engine: dict[str, Any], coalesce: bool = True, **adapters: Any) -> SimulationLog:
    return simulate(build_inputs(scenario(engine, **adapters)), check=True, coalesce=coalesce)


OVERLAPPED = {"adapter_loading": {"overlap": True, "prefetch": True}}


@pytest.mark.parametrize(
    "more", [{}, {"kernels": "simlora"}, {"version": "0.8.5"}, {"adapter_loading": {"overlap": True}}]
)
def test_coalesced_as_step_by_step(more: dict[str, Any]) -> None:
    one, other = (run(OVERLAPPED | more, coalesce) for coalesce in (True, False))
    assert np.array_equal(one.requests.last_token_s, other.requests.last_token_s)
    assert one.events < other.events


def test_with_everyone_in_a_slot_overlap_changes_nothing() -> None:
    plain, overlapped = (run({"max_loras": 8, **more}, preload=True) for more in ({}, OVERLAPPED))
    assert np.allclose(plain.requests.last_token_s, overlapped.requests.last_token_s, rtol=1e-12)


def test_every_copy_is_booked() -> None:
    log = run({"adapter_loading": {"overlap": True}})
    replica = log.replicas[0]
    assert replica.host_hits + replica.disk_loads > 8
    assert replica.load_bytes > 0 and replica.runs["load_s"].sum() == 0
    waited = log.requests.load_tier > 0
    assert (log.requests.load_s[waited] > 0).all() and (log.requests.load_s[~waited] == 0).all()


def test_remote_adapters_are_fetched_first() -> None:
    data = scenario({"adapter_loading": {"overlap": True}}).model_copy()
    slow = data.model_copy(
        update={"storage": data.storage.model_validate({"remote": {"latency_s": 3.0, "bandwidth_gib_s": 0.1}})}
    )
    log = simulate(build_inputs(slow), check=True)
    fetched = log.requests.load_tier == 3
    assert fetched.sum() == 8 and (log.requests.load_s[fetched] > 3.0).all()


def test_prefetch_needs_overlap() -> None:
    with pytest.raises(ConfigError, match=r"engine\.adapter_loading\.prefetch: True: needs"):
        scenario({"adapter_loading": {"prefetch": True}})
