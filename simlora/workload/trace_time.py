"""Time stamps of a trace: order, start, clock tick, plausible unit. Times are seconds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simlora.errors import ConfigError
from simlora.workload.rng import rng
from simlora.workload.trace import Floats, TraceTable

PLAUSIBLE_RPS = (0.001, 10_000.0)
"""Outside this range a wrong unit is likelier than the rate (a factor of 1000 off in either direction)."""

LONGEST_S = 1e8
"""Three years: a larger stamp counts from 1970, not from the start of the trace."""


def rate_rps(arrival_s: Floats) -> float | None:
    """Mean arrival rate between the first and the last of sorted times; None where it is not defined."""
    span_s = float(arrival_s[-1] - arrival_s[0]) if len(arrival_s) > 1 else 0.0
    return (len(arrival_s) - 1) / span_s if span_s > 0.0 else None


def in_order(trace: TraceTable, window_s: float) -> TraceTable:
    """Sort stamps that go back by at most window_s (noted); ConfigError at the first that goes back further."""
    back_s = np.maximum.accumulate(trace.arrival_s) - trace.arrival_s
    late = int(np.count_nonzero(back_s))
    if not late:
        return trace
    if back_s.max() > window_s:
        first = int(np.argmax(back_s > window_s))
        allowed = f"time stamps that go back by at most {window_s:g} s (this one by {back_s[first]:g} s)"
        raise ConfigError(trace.where(first), "time stamp", float(trace.arrival_s[first]), allowed)
    ordered = trace.take(np.argsort(trace.arrival_s, kind="stable"))
    return ordered.note(f"{late} rows were out of order by at most {back_s.max():g} s and have been sorted")


def from_zero(trace: TraceTable) -> TraceTable:
    """The same trace with its first arrival at 0."""
    return replace(trace, arrival_s=trace.arrival_s - trace.arrival_s[0])


def check_unit(trace: TraceTable) -> None:
    """ConfigError where the rate suggests that stamps are in another unit than assumed."""
    rate = rate_rps(trace.arrival_s)
    if rate is not None and not PLAUSIBLE_RPS[0] <= rate <= PLAUSIBLE_RPS[1]:
        allowed = f"s, ms, us or ns, stated: as read, the trace has {rate:.3g} requests per second"
        raise ConfigError(trace.source, "unit", None, allowed)


def check_range(trace: TraceTable) -> None:
    """ConfigError where stamps count from 1970 instead of from the start of the trace."""
    if trace.arrival_s[-1] > LONGEST_S:
        allowed = f"seconds from the start of the trace, at most {LONGEST_S:g}"
        raise ConfigError(trace.where(len(trace) - 1), "time stamp", float(trace.arrival_s[-1]), allowed)


def tick_s(arrival_s: Floats) -> float:
    """Smallest gap between two distinct sorted stamps: the tick of a coarse clock; 0 if all are equal."""
    gaps_s = np.diff(arrival_s)
    gaps_s = gaps_s[gaps_s > 0.0]
    return float(gaps_s.min()) if len(gaps_s) else 0.0


def spread(trace: TraceTable, seed: int) -> TraceTable:
    """Move each stamp forward by a uniform share of the clock's tick; rows keep their order.

    A clock that ticks every 3 s (Mooncake's conversation trace) makes bursts that never happened.
    """
    width_s = tick_s(trace.arrival_s)
    if width_s <= 0.0:
        return trace.note("jitter: all stamps are equal, nothing to spread")
    moved = trace.arrival_s + width_s * rng(seed, "trace.jitter").random(len(trace))
    distinct = len(np.unique(trace.arrival_s))
    note = f"jitter: {len(trace)} stamps ({distinct} distinct) spread over {width_s:g} s each"
    return replace(trace, arrival_s=np.sort(moved)).note(note)
