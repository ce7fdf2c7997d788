"""The summary of a simulation: one mapping, in a fixed order, of plain JSON values (null, never NaN).

The same log gives the same mapping, and to_json the same bytes. Seconds, tokens, bytes, requests, dollars and fractions
(0 to 1) only: reports convert.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

import simlora
from simlora.engines.registry import engine_spec
from simlora.results.gpus import cost_block, gpu_block
from simlora.results.health import health_block, health_notes, saturation
from simlora.results.measured import Measured, latency_blocks, request_counts, slo_block, throughput_block, ttft_by_tier
from simlora.results.metrics import rate
from simlora.results.replicas import (
    active_adapters,
    adapters_block,
    memory_block,
    ranks_block,
    replica_rows,
    transfers_block,
)
from simlora.results.shares import bottleneck
from simlora.results.tenants import fairness_block
from simlora.sim.log import SimulationLog

START_UP_NOTE_FRACTION = 0.05
"""Share of the paid time from which engine start-up is mentioned beside the cost."""


def summarize(log: SimulationLog) -> dict[str, Any]:
    """Everything that summary.json holds; each block is documented where it is computed."""
    measured = Measured(log)
    binding = bottleneck(measured)
    health = health_block(binding["shares"])  # type: ignore[arg-type]
    limit = saturation(measured)
    summary = {
        "scenario": log.scenario.name,
        "seed": log.scenario.seed,
        "simlora_version": simlora.__version__,
        "calibration": calibration_block(measured),
        "requests": request_counts(measured),
        **throughput_block(measured),
        **latency_blocks(measured),
        "slo": slo_block(measured),
        "adapters": adapters_block(measured),
        "transfers": transfers_block(measured),
        "ranks": ranks_block(measured),
        "memory": memory_block(measured),
        "gpu": gpu_block(measured),
        "cost": cost_block(measured),
        "bottleneck": binding,
        "health": health,
        "replicas": replica_rows(measured),
        "active_adapters": active_adapters(measured),
        "ttft_by_tier_s": ttft_by_tier(measured),
        "tenants": fairness_block(measured),
        "saturation": limit,
        "notes": [*log.notes, *health_notes(health["thrashing"], limit, log.scenario.engine), *_notes(measured)],
    }
    plain: dict[str, Any] = to_plain(summary)
    return plain


def calibration_block(measured: Measured) -> dict[str, Any]:
    """{id, sha256, extrapolated}: which calibration priced the steps, and for each term the share of all step time in
    which it was used outside its measured range (terms that never were are absent)."""
    log = measured.log
    stepped_s = sum(float(np.sum(timeline.duration_s)) for timeline in measured.timelines)
    outside = {term: seconds for term, seconds in sorted(log.extrapolated_s.items()) if seconds > 0}
    fractions = {term: min(rate(seconds, stepped_s) or 0.0, 1.0) for term, seconds in outside.items()}
    return {"id": log.calibration.get("id"), "sha256": log.calibration.get("sha256"), "extrapolated": fractions}


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
