"""Synthetic requests from a scenario: its arrival process and lengths, by the functions that draw them."""

from __future__ import annotations

from simlora.errors import ConfigError
from simlora.scenario.arrivals import (
    DeterministicArrivals,
    DiurnalArrivals,
    FlashCrowdArrivals,
    GammaArrivals,
    MmppArrivals,
)
from simlora.scenario.lengths import EmpiricalLengths, FixedLengths, Lengths, LognormalLengths, UniformLengths
from simlora.scenario.root import Scenario
from simlora.workload import arrivals, lengths, rates
from simlora.workload.rng import rng
from simlora.workload.trace import Floats, Ints
from simlora.workload.trace_columns import CsvTable
from simlora.workload.trace_open import file_name, read_text, resolved


def arrival_times(scenario: Scenario) -> Floats:
    """Arrival times of the scenario's process, from the stream "arrivals". At least one, or ConfigError."""
    workload = scenario.workload
    window = arrivals.Window(workload.duration_s, workload.num_requests)
    times_s = _process(scenario, window)
    if not len(times_s):
        value = workload.duration_s
        raise ConfigError(scenario.source, "workload.duration_s", value, "long enough for a request to arrive")
    return times_s


def _process(scenario: Scenario, window: arrivals.Window) -> Floats:
    kind, stream = scenario.workload.arrivals, rng(scenario.seed, "arrivals")
    assert kind is not None, "a scenario without a trace has arrivals"
    if isinstance(kind, DiurnalArrivals):
        return rates.diurnal(stream, kind.mean_rate_rps, kind.peak_to_trough, kind.period_s, kind.phase_s, window)
    if isinstance(kind, FlashCrowdArrivals):
        return rates.flash_crowd(stream, kind.base_rps, kind.peak_rps, kind.start_s, kind.ramp_s, kind.hold_s, window)
    if isinstance(kind, MmppArrivals):
        states = rng(scenario.seed, "arrivals.states")
        rates_rps, mean_s = zip(*((state.rate_rps, state.mean_s) for state in kind.states), strict=True)
        return rates.mmpp(stream, states, rates_rps, mean_s, window)
    if isinstance(kind, GammaArrivals):
        return arrivals.gamma(stream, kind.rate_rps, kind.cv, window)
    if isinstance(kind, DeterministicArrivals):
        return arrivals.deterministic(kind.rate_rps, window)
    return arrivals.poisson(stream, kind.rate_rps, window)


def token_counts(scenario: Scenario, key: str, size: int) -> Ints:
    """Lengths of `size` requests; `key` is "prompt_tokens" or "output_tokens" and names the stream, too."""
    kind: Lengths | None = getattr(scenario.workload, key)
    stream = rng(scenario.seed, key)
    if isinstance(kind, LognormalLengths):
        return lengths.lognormal(stream, size, kind.median, kind.sigma, kind.min, kind.max)
    if isinstance(kind, UniformLengths):
        return lengths.uniform(stream, size, kind.min, kind.max)
    if isinstance(kind, FixedLengths):
        return lengths.fixed(size, kind.value)
    assert isinstance(kind, EmpiricalLengths)
    return lengths.empirical(stream, size, observed_lengths(resolved(scenario, kind.path), kind.column))


def observed_lengths(path: str, column: str) -> Ints:
    """All values of one column of a CSV file: whole numbers of at least 1, or ConfigError."""
    columns = CsvTable(read_text(path), file_name(path))
    return columns.tokens(columns.require(column), 1)
