"""What two runs must agree on: the life of every request, counters of every replica, and what its rows add up to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from support.naive_vllm import Job

from simlora.sim.log_builder import run_columns
from simlora.sim.simulation import Simulation

Life = tuple[object, ...]


def life(request: Any) -> Life:
    """Everything that happened to a request, as text where it may be NaN."""
    times = request.routed_s, request.admitted_s, request.first_token_s, request.last_token_s
    counts = request.preemptions, request.recomputed_tokens, request.cached_tokens, request.load_tier, request.replica
    return (request.index, request.rejected, *map(repr, times), *counts, repr(request.load_s), request.interrupted)


def played(requests: Iterable[Any]) -> list[Life]:
    """What the naive engine knows too."""
    times = [(_none(r.admitted_s), _none(r.first_token_s), _none(r.last_token_s)) for r in requests]
    return [(r.index, r.rejected, *t, r.preemptions, r.load_tier) for r, t in zip(requests, times, strict=True)]


def played_naively(jobs: Sequence[Job]) -> list[Life]:
    return [
        (j.index, j.rejected, j.admitted_s, j.first_token_s, j.last_token_s, j.preemptions, j.load_tier) for j in jobs
    ]


def _none(time_s: float) -> float | None:
    return None if math.isnan(time_s) else time_s


def counters(replica: Any) -> tuple[object, ...]:
    engine = replica.engine
    return (
        tuple(engine.slots.tier_counts), engine.slots.evictions, engine.preemptions, replica.finished,
        replica.rejected, replica.outstanding, engine.kv.free, engine.step,
    )  # fmt: skip


def row_sums(replica: Any) -> dict[str, float]:
    """What the rows of a replica add up to, whichever way it is cut into rows."""
    rows = run_columns(replica.log)
    steps, weight, later = rows["steps"], rows["decode_count"], np.maximum(rows["steps"] - 1, 0.0)
    later_s = later * rows["gap_s"] + rows["slope_s"] * later * (later - 1) / 2
    duration = rows["first_gap_s"] + later_s
    sums = {
        "steps": steps,
        "duration_s": duration,
        "gaps": rows["first_weight"] + later * weight,
        "gap_s": rows["first_weight"] * rows["first_gap_s"] + weight * later_s,
        "decoded": weight * steps,
        "prefill_tokens": rows["prefill_tokens"] * steps,
        "prefills": rows["prefill_count"] * steps,
        "running_s": rows["running"] * duration,
        "host_s": rows["host_s"] * steps,
        "load_s": rows["load_s"],
        "base_s": rows["base_s"] * steps,
        "lora_s": rows["lora_s"] * steps,
    }
    reasons = ("slots", "kv", "seqs", "tokens")
    for reason in reasons:
        sums[f"waiting_{reason}_s"] = rows[f"waiting_{reason}"] * duration
    sums["waiting_s"] = sum(sums[f"waiting_{reason}_s"] for reason in reasons)
    return {name: math.fsum(values) for name, values in sums.items()}


def outcome(simulation: Simulation) -> tuple[list[Life], list[tuple[object, ...]], int]:
    """What must be equal bit by bit between coalesced and step by step."""
    lives = [life(r) for r in simulation.requests]
    return lives, [counters(r) for r in simulation.replicas], simulation.rejected


def same_sums(one: dict[str, float], other: dict[str, float], rel: float = 1e-9) -> list[str]:
    """Names of the sums that differ, with both values."""
    return [
        f"{name}: {one[name]!r} != {other[name]!r}"
        for name in one
        if not math.isclose(one[name], other[name], rel_tol=rel, abs_tol=1e-9)
    ]
