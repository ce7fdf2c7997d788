"""timeseries.csv: the state of each replica over time, in intervals of equal length.

One row per interval and replica. Counts and usages are time means over the interval (0 while idle), rates per second,
decode_batch and step_time_s means over the interval's steps (empty when there was none).
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt

from simlora.results.csv_columns import write_columns
from simlora.results.measured import Measured
from simlora.results.timeline import WAITS, Timeline

Floats = npt.NDArray[np.float64]

MAX_INTERVALS = 100_000
"""Longer simulations get longer intervals, by whole multiples of the one asked for."""

_MEANS = ("running", *WAITS, "kv_used_blocks", "num_adapters")
COLUMNS = (
    "t_s",
    "replica",
    "running",
    *WAITS,
    "kv_usage",
    "adapters",
    "arrivals_rps",
    "completed_rps",
    "output_tps",
    "decode_batch",
    "step_time_s",
)


def interval_edges(end_s: float, step_s: float) -> Floats:
    """Edges of the intervals; the last one ends at or after end_s."""
    if end_s <= 0:
        return np.zeros(1)
    step_s *= math.ceil(end_s / step_s / MAX_INTERVALS)
    return np.arange(math.ceil(end_s / step_s - 1e-9) + 1, dtype=np.float64) * step_s


def last_instant_s(measured: Measured) -> float:
    """End of the simulation, or the last token at a client, which the front end may deliver a little later."""
    last = measured.log.requests.last_token_s[measured.completed]
    return max(measured.log.end_s, float(last.max(initial=0.0)))


def replica_series(measured: Measured, index: int, edges: Floats) -> dict[str, Floats]:
    """COLUMNS but `replica`, one value per interval; NaN where undefined. t_s is the interval's beginning."""
    timeline = measured.timelines[index]
    runs, requests = timeline.replica.runs, measured.log.requests
    # The simulation may end within the last interval, whose means are over the part before.
    width = np.diff(np.minimum(edges, max(last_instant_s(measured), edges[0])))
    series = {"t_s": edges[:-1]}
    for name in _MEANS:
        series[name] = _amounts(timeline, runs[name], edges) / width
    series["kv_usage"] = series.pop("kv_used_blocks") / max(timeline.replica.kv_blocks, 1)
    series["adapters"] = series.pop("num_adapters")
    own = requests.replica == index
    series["arrivals_rps"] = np.histogram(requests.arrival_s[own], edges)[0] / width
    series["completed_rps"] = np.histogram(requests.last_token_s[own & measured.completed], edges)[0] / width
    first = np.histogram(requests.first_token_s[own & ~np.isnan(requests.first_token_s)], edges)[0]
    later = runs["decode_count"] * (runs["steps"] - 1)
    tokens = np.diff(timeline.integral(runs["first_weight"], later, edges))
    series["output_tps"] = (first + tokens) / width
    one = np.ones_like(timeline.start_s)
    steps = np.diff(timeline.integral(one, runs["steps"] - 1, edges))
    decodes = np.diff(timeline.integral(runs["decode_count"], later, edges))
    busy = _amounts(timeline, one, edges)
    series["decode_batch"] = np.divide(decodes, steps, out=np.full(len(steps), np.nan), where=steps > 0)
    series["step_time_s"] = np.divide(busy, steps, out=np.full(len(steps), np.nan), where=steps > 0)
    return {name: series[name] for name in COLUMNS if name != "replica"}


def write_timeseries(measured: Measured, path: Path, step_s: float = 1.0) -> None:
    """Write the file; rows are ordered by time, then replica."""
    edges = interval_edges(last_instant_s(measured), step_s)
    every = [replica_series(measured, index, edges) for index in range(len(measured.timelines))]
    columns = {
        name: np.stack([series[name] for series in every], axis=1).ravel() if every else np.zeros(0)
        for name in COLUMNS
        if name != "replica"
    }
    columns["replica"] = np.tile(np.arange(len(every)), len(edges) - 1)
    write_columns(path, {name: columns[name] for name in COLUMNS})


def _amounts(timeline: Timeline, column: Floats, edges: Floats) -> Floats:
    """Integral of a run column over each interval."""
    tail_s = timeline.end_s - timeline.first_boundary_s
    return np.diff(timeline.integral(column * timeline.replica.runs["first_gap_s"], column * tail_s, edges))
