"""Cases of real users with LoRAX, as tests. The numbers are those of reference/cases.md."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1]))

from support.engine_laws import play
from support.fakes import FixedStep

from simlora.engines.inputs import Inputs
from simlora.engines.lorax.batching import LoraxLimits
from simlora.engines.lorax.engine import LoraxEngine
from simlora.engines.lorax.loader import Loader, LoaderTimes
from simlora.engines.lorax.profile import padded_rank
from simlora.engines.request import Request
from simlora.scenario.load import scenario_from_dict
from simlora.sim.build import build_inputs
from simlora.sim.log import SimulationLog
from simlora.sim.simulate import simulate

CYCLES_S = (0.5, 1.0, 2.0, 5.0)


def inputs(engine: dict[str, Any], adapters: dict[str, Any], workload: dict[str, Any], **sections: Any) -> Inputs:
    data = {
        "model": "llama-3.1-8b", "gpu": "h200-141gb",
        "engine": {"kind": "lorax", "max_model_len": 4096, **engine},
        "adapters": adapters, "workload": workload, **sections,
    }  # fmt: skip
    return build_inputs(scenario_from_dict(data))


def ttft_s(log: SimulationLog) -> np.ndarray:
    return log.requests.first_token_s - log.requests.arrival_s


def cycle_run(cycle_s: float, rate_rps: float) -> SimulationLog:
    """Four adapters of which one is active at a time: what the budget or max_active_adapters leaves of it."""
    workload = {
        "arrivals": {"kind": "poisson", "rate_rps": rate_rps}, "duration_s": 20,
        "prompt_tokens": {"kind": "fixed", "value": 100}, "output_tokens": {"kind": "fixed", "value": 16},
    }  # fmt: skip
    engine = {"adapter_cycle_time_s": cycle_s, "max_active_adapters": 1, "max_concurrent_requests": 100_000}
    return simulate(inputs(engine, {"count": 4, "ranks": 8}, workload))


def two_adapters(cycle_s: float, output: int) -> float:
    """Adapter 1 has requests waiting all the time, adapter 2 one from 0.1 s on: how long that one waits. There is room
    for one of them."""
    times = LoaderTimes(lambda rank, tier: 0.05, lambda adapter, rank: 0.6)
    limits = LoraxLimits(1000, 16, 4096, adapter_cycle_time_s=cycle_s)
    arrivals = sorted([(0.004 * i, 1) for i in range(2000)] + [(0.1, 2)])
    requests = [Request(i, at_s, adapter, 16, 10, output) for i, (at_s, adapter) in enumerate(arrivals)]
    play(lambda: LoraxEngine(limits, Loader(times), padded_rank), requests, FixedStep(0.01))
    return next(r.admitted_s - r.arrival_s for r in requests if r.adapter == 2)


@pytest.mark.parametrize("cycle_s", CYCLES_S)
def test_c40_an_inactive_adapter_waits_for_the_end_of_the_turn(cycle_s: float) -> None:
    """At least; where batches drain quickly, not longer than that and its load."""
    assert two_adapters(cycle_s, output=40) >= cycle_s - 0.1
    assert cycle_s - 0.1 <= two_adapters(cycle_s, output=1) <= cycle_s + 0.1


def test_c40_an_adapter_in_use_is_never_exchanged() -> None:
    """With requests running at every look, its turn has no end: the other waits for the end of the traffic, at 8 s."""
    assert two_adapters(0.5, output=40) > 7.9


def test_c40_short_turns_are_for_latency() -> None:
    """Below saturation, the longer the turns, the longer those wait whose adapter is away; and the fewer the loads."""
    logs = [cycle_run(cycle_s, rate_rps=120) for cycle_s in CYCLES_S]
    means = [float(np.mean(ttft_s(log))) for log in logs]
    tails = [float(np.quantile(ttft_s(log), 0.99)) for log in logs]
    loads = [log.replicas[0].disk_loads for log in logs]
    assert means == sorted(means) and means[-1] > 2 * means[0]
    assert tails == sorted(tails)
    assert loads == sorted(loads, reverse=True) and loads[0] > 2 * loads[-1]


def test_c40_long_turns_are_for_throughput() -> None:
    """Overloaded: every exchange is time without tokens."""
    logs = [cycle_run(cycle_s, rate_rps=300) for cycle_s in CYCLES_S]
    rates = [float(np.sum(log.requests.output_tokens)) / log.end_s for log in logs]
    assert rates[:3] == sorted(rates[:3]) and rates[2] > 1.05 * rates[0]
    assert rates[3] > 0.98 * rates[2]  # the last turn is longer than what is left to do


def cold_and_warm(**sections: Any) -> tuple[Inputs, SimulationLog]:
    """50 adapters of rank 64, one request at a time, so that nothing but the adapter is waited for."""
    workload = {
        "arrivals": {"kind": "poisson", "rate_rps": 0.05}, "num_requests": 120,
        "prompt_tokens": {"kind": "fixed", "value": 100}, "output_tokens": {"kind": "fixed", "value": 20},
    }  # fmt: skip
    sections = {"engine": {}, **sections}
    adapters = {"count": 50, "ranks": 64, "popularity": {"kind": "zipf", "alpha": 1.5}}
    made = inputs(sections.pop("engine"), adapters, workload, **sections)
    return made, simulate(made)


def test_c31_the_first_request_after_a_load_is_slow() -> None:
    """Cold starts pay disk and device, warm ones nothing: the two are reported apart."""
    made, log = cold_and_warm()
    ttft, tier = ttft_s(log), log.requests.load_tier
    assert set(np.unique(tier)) == {0, 2}
    extra_s = np.median(ttft[tier == 2]) - np.median(ttft[tier == 0])
    assert extra_s == pytest.approx(made.latency.load_s(64, "disk"), rel=0.1)
    assert extra_s > 5 * np.median(ttft[tier == 0])


def test_c31_a_host_cache_takes_the_disk_out_of_later_loads() -> None:
    made, log = cold_and_warm(engine={"host_cache": True})
    ttft, tier = ttft_s(log), log.requests.load_tier
    assert set(np.unique(tier)) == {0, 1, 2}
    extra_s = np.median(ttft[tier == 1]) - np.median(ttft[tier == 0])
    assert extra_s == pytest.approx(made.latency.load_s(64, "host"), rel=0.2)
    assert extra_s < 0.3 * made.latency.load_s(64, "disk")


def test_c32_the_network_comes_on_top_once() -> None:
    """335 MB at 0.1 GiB/s take 3.1 s: only the first load of an adapter waits for them."""
    storage = {"remote": {"bandwidth_gib_s": 0.1, "latency_s": 0.05}}
    made, log = cold_and_warm(storage=storage)
    ttft, tier = ttft_s(log), log.requests.load_tier
    assert set(np.unique(tier)) == {0, 2, 3}
    remote, disk, warm = (float(np.median(ttft[tier == t])) for t in (3, 2, 0))
    assert remote - disk == pytest.approx(0.05 + 335.5e6 / (0.1 * 2**30), rel=0.1)
    assert disk - warm == pytest.approx(made.latency.load_s(64, "disk"), rel=0.1)
    first = np.unique(log.requests.adapter, return_index=True)[1]
    assert np.all(tier[first] == 3) and np.count_nonzero(tier == 3) == len(first)
