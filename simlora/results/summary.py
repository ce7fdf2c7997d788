"""The summary of a simulation: one mapping, in a fixed order, of plain JSON values (null, never NaN).

The same log gives the same mapping, and to_json the same bytes. Seconds, tokens, bytes, requests, dollars and fractions
(0 to 1) only: reports convert.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

import simlora
from simlora.engines.registry import engine_spec
from simlora.results import gpus, health, measured, replicas, shares, tenants
from simlora.results.health import health_notes
from simlora.results.measured import Measured
from simlora.results.metrics import rate
from simlora.results.summary_metric import Metric
from simlora.sim.log import SimulationLog

START_UP_NOTE_FRACTION = 0.05
"""Share of the paid time from which engine start-up is mentioned beside the cost."""


def summarize(log: SimulationLog, names: Iterable[str] = ()) -> dict[str, Any]:
    """Everything that summary.json holds, or only the metrics of these names. Metrics say what they are."""
    measured, wanted = Measured(log), set(names)
    summary: dict[str, Any] = {}
    for metric in METRICS:
        if not wanted or metric.name in wanted:
            block, _, key = metric.name.rpartition(".")
            (summary.setdefault(block, {}) if block else summary)[key] = metric.compute(measured)
    plain: dict[str, Any] = to_plain(summary)
    return plain


def _extrapolated(measured: Measured) -> dict[str, float]:
    log = measured.log
    stepped_s = sum(float(np.sum(timeline.duration_s)) for timeline in measured.timelines)
    outside = {term: seconds for term, seconds in sorted(log.extrapolated_s.items()) if seconds > 0}
    return {term: min(rate(seconds, stepped_s) or 0.0, 1.0) for term, seconds in outside.items()}


def to_json(summary: dict[str, Any]) -> str:
    """Text of summary.json; floats are written so that they read back exactly."""
    return json.dumps(summary, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def to_plain(value: Any) -> Any:
    """Plain Python values, for JSON: numpy scalars unpacked, NaN and infinities as None, tuples as lists."""
    if isinstance(value, dict):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _notes(measured: Measured) -> list[str]:
    notes = []
    if measured.warmup_s:
        left_out = int(np.count_nonzero(~measured.in_statistics))
        notes.append(
            f"warm-up: {left_out} requests that arrived in the first {measured.warmup_s:g} s are left out of the "
            "percentiles, but not of throughput, attainment and cost"
        )
    start_s = sum(replica.start_s * replica.gpus for replica in measured.log.replicas if replica.paid_s is None)
    paid_s = start_s + measured.log.end_s * sum(replica.gpus for replica in measured.log.replicas)
    if paid_s and start_s / paid_s >= START_UP_NOTE_FRACTION:
        notes.append(
            f"cost: engine start-up is {start_s / paid_s * 100:.0f} % of the GPU time paid; a longer run dilutes it"
        )
    aborted = sum(replica.aborted for replica in measured.log.replicas)
    if aborted:
        why = engine_spec(measured.log.scenario.engine.kind).why_aborted
        notes.append(f"{aborted:,} requests were given up by the engine: {why}")
    return notes


METRICS = (
    Metric("scenario", "", lambda m: m.log.scenario.name, "name of the scenario"),
    Metric("seed", "", lambda m: m.log.scenario.seed, "of all random streams"),
    Metric("simlora_version", "", lambda m: simlora.__version__, "that ran"),
    Metric("calibration.id", "", lambda m: m.log.calibration.get("id"), "that priced the steps"),
    Metric("calibration.sha256", "", lambda m: m.log.calibration.get("sha256"), "of its file"),
    Metric(
        "calibration.extrapolated",
        "fraction",
        _extrapolated,
        "per term, the share of all step time in which it was used outside its measured range; no entry: never",
    ),
    *measured.METRICS,
    *replicas.ADAPTERS,
    *replicas.MEMORY,
    *gpus.METRICS,
    *shares.METRICS,
    *health.HEALTH,
    *replicas.ROWS,
    *measured.TIERS,
    *tenants.METRICS,
    *health.SATURATION,
    Metric("notes", "", lambda m: [*m.log.notes, *health_notes(m), *_notes(m)], "what a reader should know"),
)
"""Every metric, in the order of summary.json."""
