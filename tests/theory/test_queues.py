"""The simulator as a queue with a known answer.

One seat or several, every step of equal length, no scheduling ahead: the engine is then an M/G/1 or M/M/c queue, and
mean waiting times have closed forms. Samples of one run depend on each other, so the standard error comes from batch
means (20 batches); the seeds are fixed.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

sys.path.append(str(Path(__file__).parents[1]))

from support.compare import row_sums
from support.fakes import FixedStep, columns_of, make_cluster

from simlora.engines.request import Request
from simlora.engines.vllm.batch import VllmLimits
from simlora.engines.vllm.replica import VllmReplica
from simlora.sim.log_builder import run_columns

Floats = npt.NDArray[np.float64]
BATCHES = 20


def play(
    seats: int, step_s: float, rate_rps: float, outputs: npt.NDArray[np.int64], seed: int
) -> tuple[Floats, VllmReplica]:
    """(waiting times, the replica) of Poisson arrivals with one-token prompts and these output lengths."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / rate_rps, len(outputs)))
    rows = enumerate(zip(arrivals, outputs, strict=True))
    requests = columns_of([Request(i, float(t), 0, 0, 1, int(n)) for i, (t, n) in rows])
    limits = VllmLimits(seats, 8192, 1 << 40, 16, 0, 16, async_scheduling=False)
    simulation = make_cluster(requests, limits, lambda: None, latency=FixedStep(step_s))
    simulation.run()
    return np.array([r.admitted_s - r.routed_s for r in requests]), simulation.replicas[0]


def mean_and_error(samples: Floats) -> tuple[float, float]:
    """Mean after a tenth of warm-up, and the standard error of batch means."""
    samples = samples[len(samples) // 10 :]
    batches = np.array([batch.mean() for batch in np.array_split(samples, BATCHES)])
    return float(batches.mean()), float(batches.std(ddof=1) / math.sqrt(BATCHES))


def geometric(mean: float, count: int, seed: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(seed).geometric(1 / mean, count)


def erlang_c(servers: int, load: float) -> float:
    """Probability of waiting in M/M/c with `load` = arrival rate / service rate."""
    terms = [load**k / math.factorial(k) for k in range(servers)]
    last = load**servers / math.factorial(servers) * servers / (servers - load)
    return last / (sum(terms) + last)


@pytest.mark.parametrize("utilisation", [0.3, 0.6, 0.8])
def test_m_d_1(utilisation: float) -> None:
    """One-token answers: service is one step. W = rho D / (2 (1 - rho))."""
    service_s, count = 0.1, 12_000
    waits, _ = play(1, service_s, utilisation / service_s, np.ones(count, dtype=np.int64), seed=1)
    mean, error = mean_and_error(waits)
    expected = utilisation * service_s / (2 * (1 - utilisation))
    assert abs(mean - expected) < 3 * error
    assert error < 0.1 * expected


@pytest.mark.parametrize("utilisation", [0.3, 0.7])
def test_m_geometric_1(utilisation: float) -> None:
    """Geometric answers of mean 5 steps. Pollaczek-Khinchine with E[S^2] = d^2 (2 - p) / p^2."""
    step_s, mean_steps, count = 0.02, 5.0, 12_000
    p, rate = 1 / mean_steps, utilisation / (step_s * mean_steps)
    waits, _ = play(1, step_s, rate, geometric(mean_steps, count, 2), seed=3)
    mean, error = mean_and_error(waits)
    expected = rate * step_s**2 * (2 - p) / p**2 / (2 * (1 - utilisation))
    assert abs(mean - expected) < 3 * error
    assert error < 0.15 * expected


def test_m_m_1() -> None:
    """Steps so short that geometric is exponential: W = rho / (mu - lambda), P(wait > t) = rho e^(-(mu - lambda) t)."""
    service_s, steps, utilisation, count = 0.1, 2000.0, 0.7, 12_000
    waits, _ = play(1, service_s / steps, utilisation / service_s, geometric(steps, count, 4), seed=5)
    mean, error = mean_and_error(waits)
    mu, rate = 1 / service_s, utilisation / service_s
    assert abs(mean - utilisation / (mu - rate)) < 3 * error
    for time_s in (0.0, 0.2, 0.5):
        share, share_error = mean_and_error((waits > time_s).astype(np.float64))
        assert abs(share - utilisation * math.exp(-(mu - rate) * time_s)) < 3 * share_error


@pytest.mark.parametrize("seats", [2, 5])
def test_m_m_c(seats: int) -> None:
    """A batch of `seats` requests decodes as fast as one: c servers. Erlang C."""
    service_s, steps, utilisation, count = 0.1, 1000.0, 0.8, 12_000
    rate = utilisation * seats / service_s
    waits, _ = play(seats, service_s / steps, rate, geometric(steps, count, 6), seed=7)
    grid_s = service_s / steps  # an arrival waits for the end of the step in progress
    mean, error = mean_and_error(waits)
    expected = erlang_c(seats, utilisation * seats) * service_s / (seats * (1 - utilisation))
    assert abs(mean - expected) < 3 * error + grid_s
    share, share_error = mean_and_error((waits > grid_s).astype(np.float64))
    assert abs(share - erlang_c(seats, utilisation * seats)) < 3 * share_error + 0.01


@pytest.mark.parametrize("seats", [1, 4])
def test_utilisation_and_littles_law(seats: int) -> None:
    """Busy time is work; mean numbers in queue and in seats are rate times mean times."""
    step_s, count = 0.02, 3000
    outputs = geometric(5.0, count, 8)
    waits, replica = play(seats, step_s, 0.6 * seats / (5 * step_s), outputs, seed=9)
    sums, rows = row_sums(replica), run_columns(replica.log)
    span_s = replica.now_s
    rate = count / span_s
    assert sums["waiting_s"] / span_s == pytest.approx(rate * waits.mean(), rel=1e-9)
    assert sums["running_s"] / span_s == pytest.approx(rate * step_s * outputs.mean(), rel=1e-9)
    assert sums["duration_s"] == pytest.approx(rows["steps"].sum() * step_s, rel=1e-9)
    if seats == 1:
        assert sums["duration_s"] == pytest.approx(outputs.sum() * step_s, rel=1e-9)


def test_an_overloaded_queue_serves_at_its_capacity() -> None:
    """Twice the load: 4 seats are always taken, so tokens come out at 4 a step, prompts included."""
    step_s, count = 0.01, 2000
    outputs = geometric(10.0, count, 10)
    _, replica = play(4, step_s, 2 * 4 / (10 * step_s), outputs, seed=11)
    tokens_per_s = outputs.sum() / replica.now_s
    assert tokens_per_s == pytest.approx(4 / step_s, rel=0.02)
