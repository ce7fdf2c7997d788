"""Warnings: thrashing adapters, and operation so near saturation that small errors of the model change the waits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from simlora.engines.registry import engine_spec
from simlora.results.measured import Measured
from simlora.results.shares import bottleneck
from simlora.results.summary_metric import Metric
from simlora.results.timeline import WAITS, Timeline

Floats = npt.NDArray[np.float64]

THRASHING_SHARE = 0.2
"""Share of request-seconds in adapter loads and slot waits above which serving is called thrashing."""
NEAR_SATURATION = 0.85
"""Utilisation above which waits are reported as uncertain: queueing delay grows as 1 / (1 - utilisation)."""
_BACKLOG_FACTOR, _BACKLOG_REQUESTS = 1.5, 10
"""Growth of the number in the system, from the second to the last quarter of arrivals, that is taken for a trend."""

RESOURCE_NAMES = {
    "kv": "KV memory",
    "slots": "time with somebody waiting for an adapter slot",
    "rate": "offered over served rate",
}
"""Resources that every engine has; max_num_seqs and the token budget have the engine's own names."""

RULE = f"load + queue_slots > {THRASHING_SHARE:g} of request-seconds"


def thrashing(measured: Measured) -> bool | None:
    """Whether RULE holds; None when no request spent any time."""
    shares = measured.once(bottleneck)["shares"]
    load, slots = shares["load"], shares["queue_slots"]
    return None if load is None or slots is None else load + slots > THRASHING_SHARE


def saturation(measured: Measured) -> dict[str, Any]:
    """{utilisation, resource, margin_fraction, confident}: how near the system was to its limit while requests arrived.

    utilisation is the largest of these, resource its name, margin_fraction 1 - utilisation (0 at least):
    - kv, seqs, tokens: time mean of used over available KV blocks, running requests over max_num_seqs, and tokens of a
      step over max_num_batched_tokens, of the busiest replica; or what an engine has in their place (Limits in
      engines/spec.py);
    - slots: share of the time in which a request waited for an adapter slot;
    - rate: offered over served rate, when the number of requests in the system keeps growing (no steady state).
    Time means are over first to last arrival. confident is False above NEAR_SATURATION: there an error of a few per
    cent in step times changes waits several times over.
    """
    found = _utilisations(measured)
    if not found:
        return {"utilisation": None, "resource": None, "margin_fraction": None, "confident": True}
    resource = max(found, key=lambda name: found[name])
    level = found[resource]
    return {
        "utilisation": level,
        "resource": resource,
        "margin_fraction": max(1 - level, 0.0),
        "confident": level <= NEAR_SATURATION,
    }


def resource_name(resource: str, engine: Any) -> str:
    """A resource of `saturation` in words."""
    limits = engine_spec(engine.kind).limits
    own = {"seqs": limits.seqs, "tokens": limits.tokens or "max_num_batched_tokens"}
    return RESOURCE_NAMES.get(resource) or own[resource]


def health_notes(measured: Measured) -> list[str]:
    """Warnings as sentences, for the notes of a summary."""
    notes, limit = [], measured.once(saturation)
    if thrashing(measured):
        notes.append(
            f"thrashing: adapter loads and slot waits take more than {THRASHING_SHARE * 100:.0f} % of request time"
        )
    if not limit["confident"]:
        name = resource_name(limit["resource"], measured.log.scenario.engine)
        notes.append(
            f"near saturation ({name} at {limit['utilisation'] * 100:.0f} %): waits and TTFT are uncertain, since "
            "step times 5 % longer or shorter can change them several times over; throughput is less affected"
        )
    return notes


def _utilisations(measured: Measured) -> dict[str, float]:
    arrival = measured.log.requests.arrival_s
    if len(arrival) < 2 or arrival[-1] <= arrival[0]:
        return {}
    begin, end = float(arrival[0]), float(arrival[-1])
    found: dict[str, float] = {}
    for timeline in measured.timelines:
        for name, value in _of_replica(measured.log.scenario.engine, timeline, begin, end).items():
            found[name] = max(found.get(name, 0.0), value)
    growth = _offered_over_served(measured, begin, end)
    return found | ({"rate": growth} if growth else {})


def _of_replica(engine: Any, timeline: Timeline, begin_s: float, end_s: float) -> dict[str, float]:
    runs = timeline.replica.runs
    used: dict[str, tuple[Floats, float | None]] = {
        "kv": (runs["kv_used_blocks"], timeline.replica.kv_blocks),
        "seqs": (_counted(engine, runs), getattr(engine, "max_num_seqs", None)),
        "tokens": _tokens(engine, runs),
        "slots": ((runs["waiting_slots"] > 0).astype(np.float64), 1.0),
    }
    out = {}
    for name, (column, limit) in used.items():
        mean = timeline.mean(column, end_s, begin_s)
        if mean is not None and limit:
            out[name] = mean / limit
    return out


def _counted(engine: Any, runs: dict[str, Floats]) -> Floats:
    """Requests that count in max_num_seqs, or in what stands for it."""
    if not engine_spec(engine.kind).limits.queue_counts:
        return runs["running"]
    return sum((runs[name] for name in WAITS), start=runs["running"])


def _tokens(engine: Any, runs: dict[str, Floats]) -> tuple[Floats, float | None]:
    """(tokens of a step that count in the engine's budget, the budget)."""
    limits = engine_spec(engine.kind).limits
    tokens = runs["prefill_tokens"] + (runs["decode_count"] if limits.decodes_count else 0.0)
    return tokens, engine.max_num_batched_tokens if limits.tokens else None


def _offered_over_served(measured: Measured, begin_s: float, end_s: float) -> float | None:
    """Offered over served rate between the second and the last quarter; None unless the backlog clearly grows."""
    requests = measured.log.requests
    # A deployment that starts from nothing is no slower for it: what waits for it is not in the system yet.
    begun_s = requests.arrival_s if measured.log.dedicated is None else requests.routed_s
    arrival = np.sort(begun_s[~measured.rejected & ~np.isnan(begun_s)])
    left = np.sort(measured.log.requests.last_token_s[measured.completed])
    quarter = (end_s - begin_s) / 4
    early = _mean_in_system(arrival, left, begin_s + quarter, begin_s + 2 * quarter)
    late = _mean_in_system(arrival, left, begin_s + 3 * quarter, end_s)
    if late < _BACKLOG_FACTOR * early + _BACKLOG_REQUESTS:
        return None
    offered = len(arrival) / (end_s - begin_s)
    served = offered - (late - early) / (2 * quarter)
    return offered / max(served, offered * 1e-3)


def _mean_in_system(arrival: Floats, left: Floats, begin_s: float, end_s: float, samples: int = 64) -> float:
    at = np.linspace(begin_s, end_s, samples)
    return float(np.mean(np.searchsorted(arrival, at, side="right") - np.searchsorted(left, at, side="right")))


HEALTH = (
    Metric("health.thrashing", "", thrashing, "whether the rule holds"),
    Metric("health.rule", "", lambda m: RULE, "when serving is called thrashing"),
)
SATURATION = (Metric("saturation", "", lambda m: m.once(saturation), "how near the system was to its limit"),)
