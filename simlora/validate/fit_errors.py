"""How far a calibration is off on recorded runs, as residuals of a fit: simulated over measured, metric by metric.

Every metric has a width, the relative error that counts as 1: small where a run shows the metric well, large where the
slightest difference moves it, as with the TTFT of a server that is hardly or not at all able to serve its load.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from simlora.results.measured import Measured
from simlora.results.token_gaps import token_gaps
from simlora.runs.recorded import RecordedRun
from simlora.validate.micro import measured_medians, simulated_medians
from simlora.validate.replay import measured_metrics, replays
from simlora.validate.rows import DECODE, LOAD, PREFILL
from simlora.validate.scenario_of_run import ReplayOptions

WIDTHS = {
    "request_throughput_rps": 0.02,
    "tpot_mean_s": 0.03,
    "tpot_p50_s": 0.03,
    "ttft_p50_s": 0.10,
    "ttft_mean_s": 0.15,
    "ttft_p99_s": 0.30,
}
GAP_WIDTHS = {"itl_p50_s": 0.05, "itl_max_p50_s": 0.15}
"""Medians over requests of their median and of their longest gap between tokens. The longest is a step in which others'
prompts are computed, which means over requests hardly show; above the median it is mostly a stall of the host."""
SINGLE_WIDTHS = {DECODE: 0.02, PREFILL: 0.06, LOAD: 0.15}
QUEUED_TTFT_S = 0.5
"""From this measured mean TTFT on, requests queue, and TTFT tells little about the terms: widths are four times as
large."""
QUEUED_FACTOR = 4.0
LARGEST = 8.0
"""From here on residuals grow as their logarithm: a metric that is off by that much says little but the direction."""


Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class FitError:
    """One metric of one run."""

    run: str
    metric: str
    measured: float
    simulated: float
    width: float
    key: dict[str, Any] = field(default_factory=dict)

    @property
    def error(self) -> float:
        """simulated / measured - 1."""
        return self.simulated / self.measured - 1.0

    @property
    def residual(self) -> float:
        if self.simulated <= 0.0:
            return -2.0 * LARGEST
        return damped(math.log(self.simulated / self.measured) / self.width)


def damped(residual: float) -> float:
    """The residual, growing ever more slowly beyond LARGEST; never flat, so that a fit finds its way from afar."""
    size = abs(residual)
    if size <= LARGEST:
        return residual
    return math.copysign(LARGEST * (1.0 + math.log(size / LARGEST)), residual)


def errors_of(recorded: RecordedRun, options: ReplayOptions) -> list[FitError]:
    """All metrics of a run that the fit looks at, always in the same order; one that either side lacks is 0 off.

    Raises:
        ConfigError: the run cannot be simulated.
    """
    found = _whole(recorded, options) if recorded.requests is not None else []
    measured = measured_medians(recorded)
    if measured:
        simulated = simulated_medians(recorded, options)
        for item, value in measured.items():
            of_item = simulated.get(item) or value
            found.append(FitError(recorded.name, item.metric, value, of_item, SINGLE_WIDTHS[item.metric], item.key))
    return found


def _whole(recorded: RecordedRun, options: ReplayOptions) -> list[FitError]:
    """The metrics of the requests; where the residents at the start are not known, of the first assumption."""
    replay, requests = next(replays(recorded, options)), recorded.requests
    assert requests is not None, "called for a run with requests"
    log = replay.simulate()
    measured, simulated = measured_metrics(recorded), replay.metrics_of(log)
    queued = (measured["ttft_mean_s"] or 0.0) >= QUEUED_TTFT_S
    found = []
    for metric, width in WIDTHS.items():
        value = measured[metric]
        if value:
            if queued and metric.startswith("ttft"):
                width *= QUEUED_FACTOR
            found.append(FitError(recorded.name, metric, value, simulated[metric] or value, width))
    if requests.itl_max_s is not None and requests.itl_p50_s is not None:
        done = ~np.isnan(requests.e2e_s)
        gaps = _gap_metrics(requests.itl_max_s[done], requests.itl_p50_s[done])
        played = Measured(log)
        longest_s, median_s = token_gaps(played)
        of_replay = _gap_metrics(longest_s[played.completed], median_s[played.completed])
        for metric, value in gaps.items():
            found.append(FitError(recorded.name, metric, value, of_replay.get(metric, value), GAP_WIDTHS[metric]))
    return found


def _gap_metrics(longest_s: Floats, median_s: Floats) -> dict[str, float]:
    """GAP_WIDTHS' metrics over the requests with more than one token; {} if there is none."""
    several = longest_s > 0.0
    if not several.any():
        return {}
    medians = (float(np.median(gaps[several])) for gaps in (median_s, longest_s))
    return dict(zip(GAP_WIDTHS, medians, strict=True))


def rms_error(errors: Sequence[FitError]) -> float | None:
    """Root mean square of the relative errors of what does not hinge on queueing; None if there is nothing."""
    kept = [item.error for item in errors if item.width <= WIDTHS["ttft_mean_s"]]
    return math.sqrt(sum(error * error for error in kept) / len(kept)) if kept else None
