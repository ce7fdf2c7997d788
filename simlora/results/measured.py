"""Per-request times (TTFT, TPOT, E2E, queueing), their distributions, and the counts and rates of requests.

TTFT: arrival to first token, over the requests that got one; unfinished requests without one are censored: counted, and
their waiting time so far bounds the p99 from below. TPOT = (E2E - TTFT) / (output - 1) of completed requests, undefined
for one token. ITL: every gap between two tokens. Queueing: arrival to first admission, routing included. Requests that
arrive, and runs that start, before warmup_s are left out of the distributions (of nothing else).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from simlora.results.metrics import mean, metrics_from_requests, quantiles, rate, span_s
from simlora.results.quantiles import GapSegments, join, segment_max, segment_mean, segment_quantiles, segments_of
from simlora.results.timeline import Timeline
from simlora.sim.log import STATUS_COMPLETED, STATUS_REJECTED, STATUS_UNFINISHED, SimulationLog

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

PROBABILITIES = (0.5, 0.9, 0.95, 0.99)
KEYS = ("mean", "p50", "p90", "p95", "p99", "max")


@dataclass(frozen=True)
class Measured:
    """A log with the per-request times derived from it; every part of a summary starts from this.

    Arrays have one entry per OFFERED request, in order of arrival: [num_requests].
    """

    log: SimulationLog

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


def latency_blocks(measured: Measured) -> dict[str, dict[str, Any]]:
    """ttft_s, tpot_s, itl_s, e2e_s and queue_s of a summary."""
    return {
        "ttft_s": distribution(measured.ttft_s[measured.in_statistics]) | censoring(measured),
        "tpot_s": distribution(measured.tpot_s[measured.in_statistics]),
        "itl_s": gap_distribution(measured),
        "e2e_s": distribution(measured.e2e_s[measured.in_statistics]),
        "queue_s": distribution(measured.queue_s[measured.in_statistics]),
    }


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


def slo_block(measured: Measured) -> dict[str, Any]:
    """{attainment, goodput_rps}: share of offered requests that met the SLO, and their rate over the span."""
    met = met_slo(measured)
    count = int(np.count_nonzero(met))
    return {
        "attainment": count / len(met) if len(met) else None,
        "goodput_rps": rate(count, measured.span_s) if measured.span_s else (0.0 if len(met) else None),
    }


def request_counts(measured: Measured) -> dict[str, int]:
    """offered = completed + rejected + unfinished."""
    return {
        "offered": len(measured.completed),
        "completed": int(np.count_nonzero(measured.completed)),
        "rejected": int(np.count_nonzero(measured.rejected)),
        "unfinished": int(np.count_nonzero(measured.unfinished)),
    }


def throughput_block(measured: Measured) -> dict[str, Any]:
    """duration_s and the rates over it, of completed requests only.

    The duration is first arrival to last token of a completed request; where none completed, the simulated time, and
    the rates are 0.
    """
    requests, done = measured.log.requests, measured.completed
    metrics = metrics_from_requests(
        requests.arrival_s, measured.ttft_s, measured.e2e_s, requests.output_tokens, measured.completed
    )
    tokens = float(np.sum((requests.prompt_tokens + requests.output_tokens)[done]))
    return {
        "duration_s": measured.log.end_s if measured.span_s is None else measured.span_s,
        "request_throughput_rps": metrics["request_throughput_rps"] or 0.0,
        "output_throughput_tps": metrics["output_throughput_tps"] or 0.0,
        "total_throughput_tps": rate(tokens, measured.span_s) or 0.0,
    }
