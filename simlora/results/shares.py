"""Where the requests' time goes: every second between arrival and last token, put into exactly one category.

A request's time is cut into phases, and each phase is divided by what its replica did meanwhile (see timeline):
- arrival to the replica's scheduler: `route`;
- waiting for admission: the queue_* categories, in each run in the proportion in which its waiting requests waited for
  each reason (queue_tokens: the token budget, or simply the end of the step in flight). In a run that recorded nobody
  waiting, the request is charged with the parts of the step that it waited for;
- admission to first token: `load` while its steps were lengthened by adapter loads, otherwise `prefill`;
- first to last token: load, decode_base, decode_lora, collective and host, as the steps were spent; gaps that span a
  preemption are `queue_kv`, since a lack of KV blocks caused them;
- the front end's delay of its tokens: `host`.
Unfinished requests count until the end of the simulation, rejected ones not at all.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from simlora.results.measured import Measured
from simlora.results.summary_metric import Metric
from simlora.results.timeline import PARTS, Timeline

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Category(NamedTuple):
    """How reports name a category."""

    label: str
    """In tables."""
    phrase: str
    """In sentences: "most request time goes to ..."."""
    colour: str
    """On pages."""


CATEGORIES = MappingProxyType(
    {
        "queue_slots": Category("waiting for an adapter slot", "waiting for an adapter slot", "#e45756"),
        "queue_kv": Category("waiting for KV blocks", "waiting for KV memory", "#b279a2"),
        "queue_seqs": Category("waiting for a seat", "waiting for a seat", "#f58518"),
        "queue_tokens": Category(
            "waiting for a step or its budget", "waiting for the scheduler's next look at the queue", "#bab0ac"
        ),
        "route": Category("on the way to a replica", "the way to a replica: front end, router, cold starts", "#9d755d"),
        "load": Category("adapter loads", "adapter loads that block the step", "#eeca3b"),
        "prefill": Category("prefill", "computing prompts", "#72b7b2"),
        "decode_base": Category("decode: base model", "decoding: the base model", "#4c78a8"),
        "decode_lora": Category("decode: LoRA kernels", "decoding: the LoRA kernels", "#54a24b"),
        "host": Category("host and front end", "the host: scheduling and launching", "#9ecae9"),
        "collective": Category("collectives", "all-reduce between GPUs", "#79706e"),
    }
)


class Phases(NamedTuple):
    """Instants of some requests, each at least the one before: see the module's text."""

    arrival_s: Floats
    routed_s: Floats
    admitted_s: Floats
    first_token_s: Floats
    """When the first token left the engine."""
    last_token_s: Floats
    """When the last token left the engine, or the end of the simulation."""
    front_end_s: Floats
    """Delay between the engine and the client."""
    first_run: Ints
    interrupted_s: Floats
    """Length of the token gaps that span a preemption."""


def bottleneck(measured: Measured) -> dict[str, Any]:
    """{binding, shares}: the category with the largest share, and all shares (sum 1); None without any request time."""
    seconds = request_seconds(measured)
    total = sum(seconds.values())
    if total <= 0:
        return {"binding": None, "shares": dict.fromkeys(CATEGORIES)}
    shares = {name: value / total for name, value in seconds.items()}
    return {"binding": max(shares, key=lambda name: shares[name]), "shares": shares}


def request_seconds(measured: Measured) -> dict[str, float]:
    """Category -> request-seconds; they sum to the time that all requests spent in the system."""
    out = dict.fromkeys(CATEGORIES, 0.0)
    replica = measured.log.requests.replica
    unrouted = np.flatnonzero((replica < 0) & ~measured.rejected)
    out["route"] += float(np.sum(measured.log.end_s - measured.log.requests.arrival_s[unrouted]))
    for index, timeline in enumerate(measured.timelines):
        own = np.flatnonzero((replica == index) & ~measured.rejected)
        for name, value in _of_replica(timeline, phases_of(measured, timeline, own)).items():
            out[name] += value
    return {name: max(value, 0.0) for name, value in out.items()}  # differences of integrals can round below zero


def phases_of(measured: Measured, timeline: Timeline, chosen: Ints) -> Phases:
    """Phases of the chosen requests of one replica; what has not happened yet happens at the end of the simulation."""
    requests, end_s = measured.log.requests, measured.log.end_s
    arrival = requests.arrival_s[chosen]
    last_client = _known(requests.last_token_s[chosen], end_s, arrival)
    routed = np.minimum(_known(requests.routed_s[chosen], last_client, arrival), last_client)
    admitted = np.minimum(_known(requests.admitted_s[chosen], last_client, routed), last_client)
    first_client = np.minimum(_known(requests.first_token_s[chosen], last_client, admitted), last_client)
    first_run = requests.first_run[chosen]
    first = first_client
    if len(timeline.start_s):
        first = np.where(first_run >= 0, timeline.first_boundary_s[np.maximum(first_run, 0)], first_client)
    first = np.clip(first, admitted, first_client)
    front_end = np.minimum(first_client - first, last_client - first)
    interrupted = np.zeros(len(chosen))
    gaps = requests.interrupted_gaps
    for position, index in enumerate(chosen.tolist()):
        if index in gaps:
            interrupted[position] = sum(gaps[index])
    return Phases(arrival, routed, admitted, first, last_client - front_end, front_end, first_run, interrupted)


def _known(instant: Floats, otherwise: Floats | float, at_least: Floats) -> Floats:
    """The instant, or `otherwise` where it never happened; never before at_least."""
    return np.maximum(np.where(np.isnan(instant), otherwise, instant), at_least)


def _of_replica(timeline: Timeline, phases: Phases) -> dict[str, float]:
    out = dict.fromkeys(CATEGORIES, 0.0)
    out["route"] = float(np.sum(phases.routed_s - phases.arrival_s))
    out["host"] = float(np.sum(phases.front_end_s))
    for charge in (_waiting(timeline, phases), _prefilling(timeline, phases), _decoding(timeline, phases)):
        for name, value in charge.items():
            out[name] += value
    return out


def _waiting(timeline: Timeline, phases: Phases) -> dict[str, float]:
    """Split routed_s .. admitted_s."""
    out = dict.fromkeys(CATEGORIES, 0.0)
    begin, end = phases.routed_s, phases.admitted_s
    explained = np.zeros_like(begin)
    tail_s = timeline.end_s - timeline.first_boundary_s
    for wait, mix in timeline.wait_mix.items():
        head, tail = mix * timeline.replica.runs["first_gap_s"], mix * tail_s
        seconds = timeline.integral(head, tail, end) - timeline.integral(head, tail, begin)
        out[wait.replace("waiting_", "queue_")] += float(np.sum(seconds))
        explained += seconds
    _charge_step(out, timeline, begin, end, end - begin - explained)
    return out


def _charge_step(out: dict[str, float], timeline: Timeline, begin: Floats, end: Floats, seconds: Floats) -> None:
    """Add `seconds` to the parts of the steps that ran in begin .. end, in proportion; idle time is the host's."""
    span = end - begin
    scale = np.divide(seconds, span, out=np.zeros_like(span), where=span > 0)
    rest = float(np.sum(seconds))
    for part in PARTS:
        value = float(np.sum(timeline.spent(part, begin, end) * scale))
        out[part] += value
        rest -= value
    out["host"] += rest


def _prefilling(timeline: Timeline, phases: Phases) -> dict[str, float]:
    """Split admitted_s .. first_token_s."""
    span = float(np.sum(phases.first_token_s - phases.admitted_s))
    load = float(np.sum(timeline.spent("load", phases.admitted_s, phases.first_token_s)))
    return {"load": load, "prefill": span - load}


def _decoding(timeline: Timeline, phases: Phases) -> dict[str, float]:
    """Split first_token_s .. last_token_s."""
    out = dict.fromkeys(CATEGORIES, 0.0)
    begin, end = phases.first_token_s, phases.last_token_s
    away = np.minimum(phases.interrupted_s, end - begin)
    out["queue_kv"] = float(np.sum(away))
    _charge_step(out, timeline, begin, end, end - begin - away)
    return out


METRICS = (
    Metric("bottleneck", "fraction", lambda m: m.once(bottleneck), "shares of request-seconds, and the largest's name"),
)
