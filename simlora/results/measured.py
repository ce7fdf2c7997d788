"""Per-request times (TTFT, TPOT, E2E, queueing), their distributions, and the counts and rates of requests.

TTFT: arrival to first token, over the requests that got one; unfinished requests without one are censored: counted, and
their waiting time so far bounds the p99 from below. TPOT = (E2E - TTFT) / (output - 1) of completed requests, undefined
for one token. ITL: every gap between two tokens. Queueing: arrival to first admission, routing included. Requests that
arrive, and runs that start, before warmup_s are left out of the distributions (of nothing else).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from simlora.results.metrics import mean, metrics_from_requests, quantiles, rate, span_s
from simlora.results.quantiles import GapSegments, join, segment_max, segment_mean, segment_quantiles, segments_of
from simlora.results.summary_metric import HIGHER, LOWER, Metric
from simlora.results.timeline import Timeline
from simlora.sim.log import STATUS_COMPLETED, STATUS_REJECTED, STATUS_UNFINISHED, SimulationLog

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
T = TypeVar("T")

PROBABILITIES = (0.5, 0.9, 0.95, 0.99)
KEYS = ("mean", "p50", "p90", "p95", "p99", "max")


@dataclass(frozen=True)
class Measured:
    """A log with the per-request times derived from it; every part of a summary starts from this.

    Arrays have one entry per OFFERED request, in order of arrival: [num_requests].
    """

    log: SimulationLog
    _known: dict[Callable[[Measured], Any], Any] = field(default_factory=dict, repr=False, compare=False)

    def once(self, compute: Callable[[Measured], T]) -> T:
        """compute(self), remembered for whoever asks again."""
        if compute not in self._known:
            self._known[compute] = compute(self)
        value: T = self._known[compute]
        return value

    @cached_property
    def timelines(self) -> tuple[Timeline, ...]:
        """One per replica, by index."""
        return tuple(Timeline(replica) for replica in self.log.replicas)

    @cached_property
    def completed(self) -> Bools:
        """[num_requests]: got all of its tokens before the run ended."""
        return self._has_status(STATUS_COMPLETED)

    @cached_property
    def unfinished(self) -> Bools:
        """[num_requests]: still in the system when the run ended (workload.end: cut)."""
        return self._has_status(STATUS_UNFINISHED)

    @cached_property
    def rejected(self) -> Bools:
        """[num_requests]: refused by a router or a replica, or given up by the engine."""
        return self._has_status(STATUS_REJECTED)

    def _has_status(self, status: int) -> Bools:
        return np.equal(self.log.requests.status, status)

    @cached_property
    def ttft_s(self) -> Floats:
        """[num_requests], arrival to first token at the client; NaN without one."""
        return self.log.requests.first_token_s - self.log.requests.arrival_s

    @cached_property
    def e2e_s(self) -> Floats:
        """[num_requests], arrival to last token at the client; NaN unless completed."""
        requests = self.log.requests
        return np.where(self.completed, requests.last_token_s - requests.arrival_s, np.nan)

    @cached_property
    def tpot_s(self) -> Floats:
        """[num_requests], (E2E - TTFT) / (output tokens - 1); NaN unless completed with two tokens or more."""
        later = self.log.requests.output_tokens - 1
        defined = self.completed & (later >= 1)
        return np.where(defined, (self.e2e_s - self.ttft_s) / np.maximum(later, 1), np.nan)

    @cached_property
    def queue_s(self) -> Floats:
        """[num_requests], arrival to first admission; NaN before it."""
        return self.log.requests.admitted_s - self.log.requests.arrival_s

    @cached_property
    def in_statistics(self) -> Bools:
        """[num_requests]: arrived after the warm-up. Percentiles leave the others out, costs do not."""
        return self.log.requests.arrival_s >= self.warmup_s

    @cached_property
    def warmup_s(self) -> float:
        """The scenario's workload.warmup_s."""
        return float(getattr(self.log.scenario.workload, "warmup_s", 0.0) or 0.0)

    @cached_property
    def span_s(self) -> float | None:
        """First arrival to the last token of a completed request: what throughput divides by. None: none completed."""
        return span_s(self.log.requests.arrival_s, self.e2e_s, self.completed)


def distribution(values: Floats, keys: Iterable[str] = KEYS) -> dict[str, float | None]:
    """KEYS of the values that are not NaN; None when there are none."""
    known = values[~np.isnan(values)]
    largest = float(known.max()) if len(known) else None
    every = dict(zip(KEYS, (mean(known), *quantiles(known, PROBABILITIES), largest), strict=True))
    return {key: every[key] for key in keys}


def censoring(measured: Measured) -> dict[str, Any]:
    """Unfinished requests without a first token, and the p99 of TTFT if each had got it at the end of the simulation.

    Every true TTFT is at least the value used, so the true p99 is at least this one.
    """
    requests = measured.log.requests
    counted = measured.in_statistics
    waiting = measured.unfinished & np.isnan(measured.ttft_s) & counted
    so_far = measured.log.end_s - requests.arrival_s[waiting]
    known = measured.ttft_s[counted & ~np.isnan(measured.ttft_s)]
    (bound,) = quantiles(np.concatenate((known, so_far)), (0.99,))
    return {"censored_count": int(np.count_nonzero(waiting)), "censored_lower_bound_p99": bound}


def gap_distribution(measured: Measured) -> dict[str, float | None]:
    """KEYS of all inter-token gaps."""
    segments = gap_segments(measured)
    values = (segment_mean(segments), *segment_quantiles(segments, PROBABILITIES), segment_max(segments))
    return {key: None if np.isnan(value) else float(value) for key, value in zip(KEYS, values, strict=True)}


def gap_segments(measured: Measured) -> GapSegments:
    """Every gap between two tokens of a request: per run one head and one tail segment, and gaps across preemptions."""
    parts = [_run_segments(timeline, measured.warmup_s) for timeline in measured.timelines]
    interrupted = measured.log.requests.interrupted_gaps
    counted = (index for index in sorted(interrupted) if measured.in_statistics[index])
    parts.append(segments_of([gap for index in counted for gap in interrupted[index]]))
    return join(parts)


def _run_segments(timeline: Timeline, warmup_s: float) -> GapSegments:
    counted = timeline.start_s >= warmup_s
    runs = {name: column[counted] for name, column in timeline.replica.runs.items()}
    steps = runs["steps"].astype(np.int64)
    one, flat = np.ones_like(steps), np.zeros_like(runs["first_gap_s"])
    pipeline = timeline.replica.pipeline
    first_gap_s = runs["first_gap_s"] if pipeline is None else pipeline.token_gap_s[counted]
    head = GapSegments(first_gap_s, flat, one, runs["first_weight"])
    tail = GapSegments(runs["gap_s"], runs["slope_s"], np.maximum(steps - 1, 0), runs["decode_count"])
    return join((head, tail)).nonempty()


def ttft_by_tier(measured: Measured) -> dict[str, dict[str, Any]]:
    """TTFT apart by where the adapter was at admission: warm (in a slot, or base) and cold starts by their source."""
    tier = measured.log.requests.load_tier
    out: dict[str, dict[str, Any]] = {}
    for index, name in enumerate(("slot", "host", "disk", "remote")):
        values = measured.ttft_s[measured.in_statistics & (tier == index)]
        known = values[~np.isnan(values)]
        out[name] = {"requests": len(known)} | distribution(known, ("mean", "p50", "p99"))
    return out


def met_slo(measured: Measured) -> Bools:
    """[num_requests], offered ones: completed, TTFT within slo.ttft_s and, with two tokens or more, TPOT within
    slo.tpot_s.

    An objective that the scenario does not set is met by every completed request.
    """
    slo = getattr(measured.log.scenario, "slo", None)
    ttft_s, tpot_s = getattr(slo, "ttft_s", None), getattr(slo, "tpot_s", None)
    met = measured.completed.copy()
    if ttft_s is not None:
        met &= np.nan_to_num(measured.ttft_s, nan=np.inf) <= ttft_s
    if tpot_s is not None:
        met &= np.isnan(measured.tpot_s) | (measured.tpot_s <= tpot_s)
    return met


def request_counts(measured: Measured) -> dict[str, int]:
    """offered = completed + rejected + unfinished."""
    return {
        "offered": len(measured.completed),
        "completed": int(np.count_nonzero(measured.completed)),
        "rejected": int(np.count_nonzero(measured.rejected)),
        "unfinished": int(np.count_nonzero(measured.unfinished)),
    }


def throughput(measured: Measured) -> dict[str, float | None]:
    """What recorded runs are compared by (metrics.METRICS), over the completed requests."""
    requests = measured.log.requests
    times = requests.arrival_s, measured.ttft_s, measured.e2e_s
    return metrics_from_requests(*times, requests.output_tokens, measured.completed)


def _total_tps(measured: Measured) -> float:
    requests = measured.log.requests
    tokens = float(np.sum((requests.prompt_tokens + requests.output_tokens)[measured.completed]))
    return rate(tokens, measured.span_s) or 0.0


def _attainment(measured: Measured) -> float | None:
    met = measured.once(met_slo)
    return int(np.count_nonzero(met)) / len(met) if len(met) else None


def _goodput_rps(measured: Measured) -> float | None:
    met = measured.once(met_slo)
    if measured.span_s:
        return rate(int(np.count_nonzero(met)), measured.span_s)
    return 0.0 if len(met) else None


def _counted(values: Floats, measured: Measured) -> dict[str, float | None]:
    return distribution(values[measured.in_statistics])


METRICS = (
    Metric("requests.offered", "count", lambda m: len(m.completed), "completed + rejected + unfinished"),
    Metric(
        "requests.completed",
        "count",
        lambda m: int(np.count_nonzero(m.completed)),
        "got all tokens",
        "completed",
        HIGHER,
    ),
    Metric("requests.rejected", "count", lambda m: int(np.count_nonzero(m.rejected)), "turned away", "rejected", LOWER),
    Metric(
        "requests.unfinished",
        "count",
        lambda m: int(np.count_nonzero(m.unfinished)),
        "still in the system at the end",
        "unfinished",
        LOWER,
    ),
    Metric(
        "duration_s",
        "s",
        lambda m: m.log.end_s if m.span_s is None else m.span_s,
        "first arrival to last token of a completed request; the simulated time where none completed",
    ),
    Metric(
        "request_throughput_rps",
        "1/s",
        lambda m: m.once(throughput)["request_throughput_rps"] or 0.0,
        "completed requests over the duration",
        "requests /s",
        HIGHER,
    ),
    Metric(
        "output_throughput_tps",
        "tokens/s",
        lambda m: m.once(throughput)["output_throughput_tps"] or 0.0,
        "output tokens of completed requests over the duration",
        "output tokens /s",
        HIGHER,
    ),
    Metric("total_throughput_tps", "tokens/s", _total_tps, "the same, prompts included"),
    Metric(
        "ttft_s",
        "s",
        lambda m: _counted(m.ttft_s, m) | censoring(m),
        "time to first token; censored_*: see censoring",
        "TTFT",
        LOWER,
        statistics=("mean", "p50", "p99"),
    ),
    Metric(
        "tpot_s",
        "s",
        lambda m: _counted(m.tpot_s, m),
        "time per output token",
        "TPOT",
        LOWER,
        statistics=("mean", "p99"),
    ),
    Metric("itl_s", "s", lambda m: gap_distribution(m), "every inter-token gap", "ITL", LOWER, statistics=("p99",)),
    Metric("e2e_s", "s", lambda m: _counted(m.e2e_s, m), "arrival to last token", "E2E", LOWER, statistics=("mean",)),
    Metric(
        "queue_s",
        "s",
        lambda m: _counted(m.queue_s, m),
        "arrival to admission",
        "queueing",
        LOWER,
        statistics=("mean",),
    ),
    Metric(
        "slo.attainment",
        "fraction",
        _attainment,
        "share of OFFERED requests that met the SLO",
        "SLO attainment",
        HIGHER,
    ),
    Metric("slo.goodput_rps", "1/s", _goodput_rps, "their rate over the duration", "goodput /s", HIGHER),
)

TIERS = (Metric("ttft_by_tier_s", "s", ttft_by_tier, "TTFT apart by where the adapter was at admission"),)
