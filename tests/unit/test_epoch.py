"""Boundaries of runs, and how host and GPU overlap."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[1]))

from support.cases import Case, examples
from support.fakes import RoundLatency

from simlora.engines.epoch import FOREVER, Ahead, Epoch, alternate, boundary, open_alternating, open_empty, plan_ahead
from simlora.engines.vllm.batch import VllmLimits
from simlora.latency.step import Prefill, StepPlan, StepTiming
from simlora.sim.log_builder import run_columns


def timing(
    host: float = 2.0, load: float = 0.0, gpu: float = 5.0, slope: float = 0.0, tail: float | None = None,
    valid: int = 1000, sync: float = 0.0, repeat: float = -1.0,
) -> StepTiming:  # fmt: skip
    return StepTiming(host, load, gpu, 0.0, 0.0, 0.0, slope, tail is not None, tail or 0.0, valid, (), sync, repeat)


class Steps:
    """The boundaries of an epoch, and the GPU time left at them, as a replica finds them."""

    def __init__(self, now_s: float, form: Ahead, growth_s: float) -> None:
        first_gap_s, gap_s, slope_s, self.steps, self._left_s = form
        self._form = now_s, now_s + first_gap_s, gap_s, slope_s
        self._growth_s = growth_s

    def boundary(self, index: int) -> float:
        return boundary(*self._form, index)

    def residual(self, index: int) -> float:
        """GPU time left at boundary `index` >= 1 of the step in flight."""
        return self._left_s + self._growth_s * (index - 1)


def ahead(now_s: float, residual_s: float, t: StepTiming) -> Steps:
    """Asynchronous scheduling."""
    form = plan_ahead(
        residual_s, t.host_s, t.load_s, t.gpu_s, t.slope_s, t.launch_bound, t.tail_s, t.valid_steps, t.sync_s,
        t.repeat_host_s,
    )  # fmt: skip
    return Steps(now_s, form, t.slope_s)


def in_turn(now_s: float, t: StepTiming) -> Steps:
    """Host and GPU alternate."""
    form = alternate(
        t.host_s, t.load_s, t.gpu_s, t.slope_s, t.launch_bound, t.tail_s, t.valid_steps, t.sync_s, t.repeat_host_s
    )
    return Steps(now_s, form, 0.0)


def gaps(epoch: Epoch | Steps, count: int) -> list[float]:
    return [epoch.boundary(i + 1) - epoch.boundary(i) for i in range(count)]


Alternating = Callable[[float, StepTiming], Epoch | Steps]
alternating = pytest.mark.parametrize("alternating", [in_turn, open_alternating])
"""By numbers, and as an object."""


seconds = st.floats(1e-4, 0.1)
slopes = st.one_of(st.just(0.0), st.floats(1e-9, 1e-3))


@examples(200)
@given(st.floats(0, 1e4), seconds, seconds, slopes, st.integers(0, 5000), st.floats(-0.5, 1.5))
def test_index_after(start: float, first: float, gap: float, slope: float, index: int, fraction: float) -> None:
    """The first boundary that is later than a time, as counting finds it."""
    epoch = Epoch(start, start + first, gap, slope, FOREVER, timing())
    left, right = epoch.boundary(index), epoch.boundary(index + 1)
    for time_s in (left, right, left + fraction * (right - left)):
        found = epoch.index_after(time_s)
        assert epoch.boundary(found) > time_s
        assert found == 0 or epoch.boundary(found - 1) <= time_s


def test_index_after_at_the_boundaries() -> None:
    epoch = Epoch(10.0, 13.0, 2.0, 0.5, FOREVER, timing())
    assert [epoch.boundary(i) for i in range(5)] == [10.0, 13.0, 15.0, 17.5, 20.5]
    times = (9.0, 10.0, 12.9, 13.0, 14.9, 15.0, 17.5, 20.4, 20.5)
    assert [epoch.index_after(t) for t in times] == [0, 1, 1, 2, 2, 3, 4, 4, 5]


def test_a_boundary_is_the_same_float_however_it_is_reached() -> None:
    epoch = Epoch(0.1, 0.3, 0.1, 1e-7, FOREVER, timing())
    assert epoch.boundary(7) == 0.3 + 6 * 0.1 + 1e-7 * 15


class Recursion:
    """c_(i+1) and E_(i+1) from c_i and E_i, one step at a time."""

    def __init__(self, now: float, residual: float) -> None:
        self.c, self.e = now, now + residual

    def step(self, host: float, load: float, gpu: float, tail: float | None, sync: float) -> tuple[float, float]:
        ready = self.c + host + load
        if sync:
            ready = max(self.e, ready)
            host_end = ready + sync
            end = host_end + gpu if tail is None else max(ready + gpu, host_end + tail)
        else:
            host_end = max(self.e, ready)
            end = host_end + gpu if tail is None else max(max(self.e, self.c + load) + gpu, ready + tail)
        self.c, self.e = host_end, end
        return host_end, end


whole = st.integers(0, 40).map(float)


@examples(200)
@given(whole, whole, whole, st.integers(1, 40).map(float), st.sampled_from((0.0, 1.0, 3.0)), whole, whole)
def test_asynchronous_steps_follow_the_recursion(
    residual: float, host: float, load: float, gpu: float, slope: float, sync: float, repeat: float
) -> None:
    """Until the epoch ends; whole numbers, so that both sides are exact."""
    naive = Recursion(100.0, residual)
    epoch = ahead(100.0, residual, timing(host, load, gpu, slope, None, 1000, sync, repeat))
    assert 1 <= epoch.steps <= 1000
    first = naive.step(host, load, gpu, None, sync)
    assert (epoch.boundary(1), epoch.boundary(1) + epoch.residual(1)) == first
    for i in range(2, min(epoch.steps, 60) + 1):
        later = naive.step(repeat, 0.0, gpu + slope * (i - 1), None, 0.0)
        assert (epoch.boundary(i), epoch.boundary(i) + epoch.residual(i)) == later


@examples(130)
@given(whole, whole, whole, st.integers(1, 40).map(float), whole, whole)
def test_launch_bound_steps_follow_the_recursion(
    residual: float, host: float, load: float, gpu: float, tail: float, sync: float
) -> None:
    naive = Recursion(100.0, residual)
    epoch = ahead(100.0, residual, timing(host, load, gpu, 0.0, tail, 1, sync))
    after = naive.step(host, load, gpu, tail, sync)
    assert epoch.steps == 1
    assert (epoch.boundary(1), epoch.boundary(1) + epoch.residual(1)) == after


def test_a_run_that_the_host_paces_ends_where_the_gpu_catches_up() -> None:
    epoch = ahead(0.0, 0.0, timing(host=10.0, gpu=7.0, slope=1.0))
    assert epoch.steps == 4
    assert gaps(epoch, 4) == [10.0, 10.0, 10.0, 10.0]
    assert epoch.residual(4) == 10.0
    following = ahead(epoch.boundary(4), epoch.residual(4), timing(host=10.0, gpu=11.0, slope=1.0))
    assert gaps(following, 3) == [10.0, 11.0, 12.0]


def test_the_host_may_pace_for_ever() -> None:
    assert ahead(0.0, 0.0, timing(host=10.0, gpu=7.0, valid=FOREVER)).steps == FOREVER


@alternating
@pytest.mark.parametrize("repeat, later", [(-1.0, 9.5), (1.0, 7.5)])
def test_alternating_steps_add_up(alternating: Alternating, repeat: float, later: float) -> None:
    epoch = alternating(0.0, timing(host=3.0, load=20.0, gpu=6.0, slope=0.5, sync=1.0, repeat=repeat))
    assert gaps(epoch, 3) == [30.0, later, later + 0.5]


@alternating
def test_an_alternating_launch_bound_step_ends_with_the_later_of_gpu_and_last_launch(alternating: Alternating) -> None:
    assert gaps(alternating(0.0, timing(host=3.0, load=20.0, gpu=6.0, tail=1.0)), 1) == [26.0]
    assert gaps(alternating(0.0, timing(host=9.0, load=20.0, gpu=6.0, tail=1.0)), 1) == [30.0]


def test_draining_waits_for_the_gpu() -> None:
    epoch = open_empty(5.0, 7.5)
    assert (epoch.boundary(1), epoch.steps) == (7.5, 1)


def test_a_replica_with_nothing_to_plan_drains_the_step_in_flight() -> None:
    """The empty run takes as long as the GPU still needs, which is idle then: the next request finds it as the first
    did."""
    latency = RoundLatency(gpu=40_000)
    case = Case(VllmLimits(4, 64, 100, 16, 0, 16, True), ((0, 0, 8, 1), (200_000, 0, 8, 1)), latency, 0)
    simulation = case.simulation(case.requests())
    simulation.run()
    rows = run_columns(simulation.replicas[0].log)
    prompt = latency.price(StepPlan((Prefill(0, 0, 8),), 0, 0, 8, 1, 0, 0, 0, True, (), 1))
    step = ahead(0.0, 0.0, prompt)
    assert (rows["first_gap_s"] == [step.boundary(1), step.residual(1)] * 2).all()
    assert rows["host_s"].tolist() == [prompt.host_s, 0.0] * 2


@examples(100)
@given(st.floats(0, 1e5), st.lists(seconds, min_size=4, max_size=4), slopes)
def test_boundaries_are_finite_and_never_go_back(now: float, parts: list[float], slope: float) -> None:
    host, gpu, residual, repeat = parts
    for epoch in (
        ahead(now, residual, timing(host, 0.0, gpu, slope, repeat=repeat)),
        in_turn(now, timing(host, 0.0, gpu, slope, repeat=repeat)),
        open_alternating(now, timing(host, 0.0, gpu, slope, repeat=repeat)),
    ):
        times = [epoch.boundary(i) for i in range(min(epoch.steps, 50) + 1)]
        assert times == sorted(times)
        assert all(map(math.isfinite, times))
