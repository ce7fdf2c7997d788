"""Requests of a scenario that replays a trace: its rate, how much of it, and its adapters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simlora.errors import ConfigError
from simlora.scenario.root import Scenario
from simlora.workload.adapters import AdapterTable
from simlora.workload.mapping import map_adapters
from simlora.workload.request_table import RequestTable
from simlora.workload.trace import TraceOptions, TraceTable
from simlora.workload.trace_open import resolved
from simlora.workload.trace_reader import read_trace
from simlora.workload.trace_time import rate_rps


def replayed(scenario: Scenario, adapters: AdapterTable) -> RequestTable:
    """Requests of the scenario's trace, before clipping to the context length."""
    workload = scenario.workload
    config = workload.trace
    assert config is not None, "called for a scenario with a trace"
    options = TraceOptions(
        format=config.format,
        unit=config.unit,
        jitter=config.jitter,
        failures=config.failures,
        adapter_column=config.adapter_column,
        seed=scenario.seed,
    )
    trace = read_trace(resolved(scenario, config.path), options)
    trace = scaled(trace, 1.0 if workload.scale_rate is None else workload.scale_rate)
    trace = first_part(trace, workload.duration_s, workload.limit)
    return trace_requests(trace, adapters, config.adapter_rule, scenario.seed)


def trace_requests(trace: TraceTable, adapters: AdapterTable, rule: str, seed: int) -> RequestTable:
    """The trace's rows as requests; adapters by map_adapters. Notes say what was dropped and assumed."""
    ids, note = map_adapters(trace, adapters, rule, seed)
    notes = [*map(str, trace.dropped), *trace.notes, note]
    if trace.rank is not None:
        other = int(np.count_nonzero(trace.rank != adapters.rank[ids]))
        if other:
            notes.append(f"{other} requests name another rank than their adapter has here, which is used")
    return RequestTable(
        arrival_s=trace.arrival_s,
        adapter=ids,
        prompt_tokens=trace.prompt_tokens,
        output_tokens=trace.output_tokens,
        prefix=trace.prefix,
        prefix_block_tokens=trace.prefix_block_tokens,
        notes=tuple(f"{trace.source}: {text}" for text in notes),
    )


def scaled(trace: TraceTable, scale_rate: float) -> TraceTable:
    """The trace with its request rate multiplied by scale_rate (2 = twice the load in half the time)."""
    if scale_rate == 1.0:
        return trace
    before = rate_rps(trace.arrival_s)
    trace = replace(trace, arrival_s=trace.arrival_s / scale_rate)
    change = "" if before is None else f": {before:.4g} -> {before * scale_rate:.4g} req/s"
    return trace.note(f"scale_rate {scale_rate:g}{change}")


def first_part(trace: TraceTable, duration_s: float | None, limit: int | None) -> TraceTable:
    """Arrivals before duration_s, at most `limit` of them; ConfigError if none is left."""
    keep = len(trace)
    if duration_s is not None:
        keep = int(np.searchsorted(trace.arrival_s, duration_s, side="left"))
    if not keep:
        allowed = f"above {trace.arrival_s[0]:g} s, when the first request arrives"
        raise ConfigError(trace.source, "workload.duration_s", duration_s, allowed)
    keep = min(keep, limit or keep)
    if keep == len(trace):
        return trace
    return trace.take(np.arange(keep)).note(f"the first {keep} of {len(trace)} requests are kept")
