"""Arrival processes as a user sees them: windows, order, reproducibility. Their statistics: theory/test_arrivals.py."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from simlora.workload import arrivals
from simlora.workload.arrivals import Floats, Window
from simlora.workload.rng import rng

Process = Callable[[Window], Floats]

PROCESSES: dict[str, Process] = {
    "poisson": lambda window: arrivals.poisson(rng(1, "a"), 3.0, window),
    "gamma": lambda window: arrivals.gamma(rng(1, "a"), 3.0, 2.5, window),
    "deterministic": lambda window: arrivals.deterministic(3.0, window),
    "diurnal": lambda window: arrivals.diurnal(rng(1, "a"), 3.0, 1e6, 50.0, 10.0, window),
    "flash-crowd": lambda window: arrivals.flash_crowd(rng(1, "a"), 2.0, 9.0, 10.0, 5.0, 20.0, window),
    "flash-crowd at once": lambda window: arrivals.flash_crowd(rng(1, "a"), 2.0, 9.0, 0.0, 0.0, 20.0, window),
    "mmpp": lambda window: arrivals.mmpp(rng(1, "a"), rng(1, "s"), [0.0, 8.0, 1.0], [5.0, 2.0, 9.0], window),
}

every_process = pytest.mark.parametrize("process", PROCESSES.values(), ids=list(PROCESSES))


@every_process
def test_times_are_sorted_and_within_the_window(process: Process) -> None:
    times_s = process(Window(duration_s=100.0))
    assert len(times_s) > 50
    assert times_s[0] >= 0.0 and times_s[-1] < 100.0
    assert (np.diff(times_s) >= 0.0).all()


@every_process
def test_a_number_of_requests_is_met_exactly(process: Process) -> None:
    assert len(process(Window(num_requests=1))) == 1
    assert len(process(Window(num_requests=5000))) == 5000


@every_process
def test_a_longer_run_begins_like_a_shorter_one(process: Process) -> None:
    short, long = process(Window(num_requests=700)), process(Window(num_requests=5000))
    assert short.tolist() == long[:700].tolist()
    until_s = float(long[3000])
    assert process(Window(duration_s=until_s)).tolist() == long[:3000].tolist()


def test_deterministic_arrivals_start_at_zero_and_lose_none_to_rounding() -> None:
    assert arrivals.deterministic(2.0, Window(duration_s=1.5)).tolist() == [0.0, 0.5, 1.0]
    assert len(arrivals.deterministic(0.1, Window(duration_s=30.0))) == 3
    assert len(arrivals.deterministic(10.0, Window(duration_s=0.3))) == 3


def test_another_rate_rescales_the_same_arrivals() -> None:
    slow = arrivals.poisson(rng(1, "a"), 1.0, Window(num_requests=10))
    fast = arrivals.poisson(rng(1, "a"), 4.0, Window(num_requests=10))
    np.testing.assert_allclose(slow, 4.0 * fast)


def test_a_flash_crowd_leaves_what_came_before_it_alone() -> None:
    calm = arrivals.poisson(rng(1, "a"), 2.0, Window(duration_s=100.0))
    crowd = arrivals.flash_crowd(rng(1, "a"), 2.0, 20.0, 40.0, 10.0, 20.0, Window(duration_s=100.0))
    np.testing.assert_allclose(crowd[crowd < 40.0], calm[calm < 40.0])


def test_a_flat_day_is_poisson() -> None:
    flat = arrivals.diurnal(rng(1, "a"), 3.0, 1.0, 50.0, 0.0, Window(num_requests=100))
    np.testing.assert_allclose(flat, arrivals.poisson(rng(1, "a"), 3.0, Window(num_requests=100)))


def test_mmpp_states_without_traffic_get_none() -> None:
    window = Window(duration_s=1000.0)
    times_s = arrivals.mmpp(rng(1, "a"), rng(1, "s"), [0.0, 50.0], [10.0, 10.0], window)
    stays_s = rng(1, "s").standard_exponential((64, 2)) * 10.0
    ends_s = np.cumsum(stays_s.ravel())
    state = np.searchsorted(ends_s, times_s) % 2
    assert (state == 1).all()


def test_a_window_needs_an_end() -> None:
    with pytest.raises(ValueError, match="duration_s or num_requests"):
        Window()
