"""Reads a trace file of any registered format into one TraceTable: detects the format, parses, puts times in order.

Times are seconds.
"""

from __future__ import annotations

import math
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np

from simlora.errors import ConfigError
from simlora.scenario.base import brief
from simlora.scenario.trace_formats import TRACE_FORMATS
from simlora.workload.rng import rng
from simlora.workload.traces.table import Floats, TraceFormat, TraceHead, TraceOptions, TraceTable
from simlora.workload.traces.text_file import file_name, read_text

FOLDER_FORMAT = "simlora-run"
"""The format of a folder."""

PLAUSIBLE_RPS = (0.001, 10_000.0)
"""Outside this range a wrong unit is likelier than the rate (a factor of 1000 off in either direction)."""

LONGEST_S = 1e8
"""Three years: a larger stamp counts from 1970, not from the start of the trace."""


def trace_format(name: str) -> TraceFormat:
    """What the registered format says of itself; its module is imported only now."""
    described: TraceFormat = import_module(TRACE_FORMATS[name]).FORMAT
    return described


def read_trace(path: str | Path, options: TraceOptions | None = None) -> TraceTable:
    """Trace in `path`, a file (local path or URL, plain or compressed) or a recorded run's folder, sorted by arrival.

    Raises ConfigError, naming `file:line` and the value, for anything that is not a well-formed trace.
    """
    options = options or TraceOptions()
    name = str(path)
    if "://" not in name and Path(name).is_dir():
        _check_format(name, options.format, ("auto", FOLDER_FORMAT))
        described = trace_format(FOLDER_FORMAT)
        assert described.read_folder is not None
        return _timed(described.read_folder(Path(name), options), described, options)
    return parse_trace(read_text(name), file_name(name), options)


def parse_trace(text: str, source: str, options: TraceOptions) -> TraceTable:
    """Trace from the text of a file named `source`; see read_trace."""
    _check_format(source, options.format, ("auto", *TRACE_FORMATS))
    described = detected(text, source) if options.format == "auto" else trace_format(options.format)
    return _timed(described.parse(text, source, options), described, options)


def _check_format(source: str, name: str, allowed: tuple[str, ...]) -> None:
    if name not in allowed:
        raise ConfigError(source, "format", name, f"one of {', '.join(allowed)}")


def _timed(trace: TraceTable, described: TraceFormat, options: TraceOptions) -> TraceTable:
    if not len(trace):
        reasons = "; ".join(map(str, trace.dropped))
        raise ConfigError(trace.source, "trace", reasons, "at least one usable request")
    trace = in_order(trace, math.inf if described.any_order else options.sort_window_s)
    if not described.keeps_clock:
        trace = from_zero(trace)
    if options.unit is None and not described.fixed_unit:
        check_unit(trace)
    check_range(trace)
    return spread(trace, options.seed) if options.jitter else trace


def detected(text: str, source: str) -> TraceFormat:
    """The first registered format that takes the file for its own; ConfigError when none does."""
    head = TraceHead(text, source)
    for name in TRACE_FORMATS:
        described = trace_format(name)
        if described.detect(head):
            return described
    allowed = f"not a header of {', '.join(TRACE_FORMATS)}; state format if it is one"
    raise ConfigError(source, "format", brief(head.first_line), allowed)


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
    """Smallest gap between two distinct stamps of a non-decreasing array: the tick of a coarse clock; 0 if all are
    equal."""
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
