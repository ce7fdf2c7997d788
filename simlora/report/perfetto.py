"""trace.json.gz: the run as a timeline for https://ui.perfetto.dev or chrome://tracing (Chrome's trace event format).

A replica is a process with tracks for its steps (one slice per run of equal steps), its adapter loads and its counters;
requests are asynchronous slices (queued, prefill, decode) under their replica. Times are microseconds there.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from simlora.results.measured import Measured
from simlora.results.timeline import WAITS, Timeline
from simlora.sim.log import SimulationLog

MAX_EVENTS = 500_000
"""About 8 MB compressed; more makes the viewer slow. The earliest are kept, and the trace says how many are not."""
_EVENTS_PER_RUN = 4
"""At least: a slice and three counters."""

STEPS, LOADS = 1, 2
_US = 1e6
Event = dict[str, Any]


def write_trace(log: SimulationLog, path: Path, max_events: int = MAX_EVENTS) -> int:
    """Write the trace; returns how many events were left out. The same log gives the same bytes."""
    events, left_out = trace_events(log, max_events)
    document = {
        "displayTimeUnit": "ms",
        "otherData": {"scenario": log.scenario.name, "seed": log.scenario.seed, "events_left_out": left_out},
        "traceEvents": events,
    }
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    with path.open("wb") as file, gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
        packed.write(text.encode())
    return left_out


def trace_events(log: SimulationLog, max_events: int = MAX_EVENTS) -> tuple[list[Event], int]:
    """(events, number left out): the earliest max_events, names of processes and threads not counted."""
    measured = Measured(log)
    names = [event for index in range(len(log.replicas)) for event in _names(index)]
    events: list[Event] = []
    left_out, limit = 0, max_events // _EVENTS_PER_RUN + 1
    for index, timeline in enumerate(measured.timelines):
        events += _run_events(index, timeline, limit)
        left_out += _EVENTS_PER_RUN * max(len(timeline.start_s) - limit, 0)
    events += _request_events(measured)
    events.sort(key=lambda event: event["ts"])
    return names + events[:max_events], left_out + max(len(events) - max_events, 0)


def _names(replica: int) -> Iterator[Event]:
    yield {"ph": "M", "pid": replica, "name": "process_name", "args": {"name": f"replica {replica}"}}
    for thread, name in ((STEPS, "steps"), (LOADS, "adapter loads")):
        yield {"ph": "M", "pid": replica, "tid": thread, "name": "thread_name", "args": {"name": name}}


def _run_events(replica: int, timeline: Timeline, limit: int) -> Iterator[Event]:
    """Slices and counters of the first `limit` runs."""
    runs = timeline.replica.runs
    columns = (
        timeline.start_s, timeline.duration_s, runs["steps"], runs["decode_count"], runs["prefill_tokens"],
        runs["num_adapters"], timeline.load_s, runs["running"], runs["kv_used_blocks"], *(runs[name] for name in WAITS),
    )  # fmt: skip
    for row in zip(*(column[:limit].tolist() for column in columns), strict=True):
        start_s, duration_s, steps, decodes, prefill_tokens, adapters, load_s, running, blocks, *waiting = row
        ts = _us(start_s)
        name = "prefill + decode" if prefill_tokens and decodes else "prefill" if prefill_tokens else "decode"
        args = {"steps": steps, "decodes": decodes, "prefill_tokens": prefill_tokens, "adapters": adapters}
        yield _slice(replica, STEPS, name, ts, _us(duration_s), args)
        if load_s > 0:
            yield _slice(replica, LOADS, "load", ts, _us(load_s), {})
        yield _counter(replica, ts, "running", {"requests": running})
        yield _counter(replica, ts, "waiting", dict(zip(WAITS, waiting, strict=True)))
        yield _counter(replica, ts, "KV blocks", {"used": blocks})


def _request_events(measured: Measured) -> Iterator[Event]:
    """Phases of every request that reached a replica."""
    log, requests = measured.log, measured.log.requests
    end_s = log.end_s
    instants = (requests.arrival_s, requests.admitted_s, requests.first_token_s, requests.last_token_s)
    rows = zip(
        requests.replica.tolist(), requests.adapter.tolist(), requests.prompt_tokens.tolist(),
        requests.output_tokens.tolist(), *(np.asarray(column).tolist() for column in instants), strict=True,
    )  # fmt: skip
    for index, (replica, adapter, prompt, output, arrival, admitted, first, last) in enumerate(rows):
        if replica < 0:
            continue
        args = {"adapter": adapter, "prompt_tokens": prompt, "output_tokens": output}
        for name, begin, end in (("queued", arrival, admitted), ("prefill", admitted, first), ("decode", first, last)):
            if begin == begin:  # not NaN
                until = end if end == end else max(end_s, begin)
                common = {"cat": "request", "pid": replica, "tid": 0, "id": index, "name": name}
                yield common | {"ph": "b", "ts": _us(begin), "args": args}
                yield common | {"ph": "e", "ts": _us(until)}


def _slice(replica: int, thread: int, name: str, ts: float, duration: float, args: dict[str, Any]) -> Event:
    return {"ph": "X", "pid": replica, "tid": thread, "name": name, "ts": ts, "dur": duration, "args": args}


def _counter(replica: int, ts: float, name: str, values: dict[str, Any]) -> Event:
    return {"ph": "C", "pid": replica, "name": name, "ts": ts, "args": values}


def _us(seconds: float) -> float:
    return round(seconds * _US, 3)
