"""The metrics on which simulated and measured runs are compared. Both sides are computed by this function, and so are
the matching keys of a summary. Knows nothing of where the times come from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

METRICS = (
    "request_throughput_rps",
    "output_throughput_tps",
    "ttft_mean_s",
    "ttft_p50_s",
    "ttft_p99_s",
    "tpot_mean_s",
    "tpot_p50_s",
    "tpot_p99_s",
    "e2e_mean_s",
    "preemptions",
)
"""Keys of metrics_from_requests, in order."""


def metrics_from_requests(
    arrival_s: npt.ArrayLike,
    ttft_s: npt.ArrayLike,
    e2e_s: npt.ArrayLike,
    output_tokens: npt.ArrayLike,
    completed: npt.ArrayLike | None = None,
    cut_s: float | None = None,
    preemptions: npt.ArrayLike | None = None,
) -> dict[str, float | None]:
    """Metrics over the requests that finished by the cut.

    Args:
        arrival_s, ttft_s, e2e_s, output_tokens: one entry per OFFERED request; NaN times: it did not finish.
        completed: which requests finished; by default those with both times.
        cut_s: instant at which the recording ended, on the clock of arrival_s; what finished later does not count.
        preemptions: per request, or one total; None: unknown, and so is the metric.

    Returns: METRICS -> value; None where no request defines it. Throughput = finished / (last end - first arrival), the
    first arrival being that of all offered requests. TPOT = (E2E - TTFT) / (output - 1), over outputs of 2 or more.
    """
    arrival, ttft, e2e = _floats(arrival_s), _floats(ttft_s), _floats(e2e_s)
    output = _floats(output_tokens)
    done = finished(arrival, ttft, e2e, completed, cut_s)
    span = span_s(arrival, e2e, done)
    several = done & (output >= 2)
    tpot = (e2e[several] - ttft[several]) / (output[several] - 1)
    ttft_p50, ttft_p99 = quantiles(ttft[done], (0.5, 0.99))
    tpot_p50, tpot_p99 = quantiles(tpot, (0.5, 0.99))
    values = (
        rate(float(np.count_nonzero(done)), span),
        rate(float(output[done].sum()), span),
        mean(ttft[done]),
        ttft_p50,
        ttft_p99,
        mean(tpot),
        tpot_p50,
        tpot_p99,
        mean(e2e[done]),
        None if preemptions is None else float(np.sum(_floats(preemptions))),
    )
    return dict(zip(METRICS, values, strict=True))


def metrics_from_frame(requests: Any, cut_s: float | None = None) -> dict[str, float | None]:
    """The same from a pandas DataFrame with the columns of a recorded run's requests.csv."""
    preemptions = requests["preemptions"].fillna(0) if "preemptions" in requests else None
    return metrics_from_requests(
        requests["arrival_s"],
        requests["ttft_s"],
        requests["e2e_s"],
        requests["output_tokens"],
        cut_s=cut_s,
        preemptions=preemptions,
    )


def finished(
    arrival_s: Floats, ttft_s: Floats, e2e_s: Floats, completed: npt.ArrayLike | None = None, cut_s: float | None = None
) -> Bools:
    """[num_requests]: which requests count: both times are known, and the last token came out by cut_s."""
    done: Bools = ~np.isnan(e2e_s) & ~np.isnan(ttft_s)
    if completed is not None:
        done &= np.asarray(completed, dtype=np.bool_)
    if cut_s is not None:
        done &= arrival_s + np.where(done, e2e_s, 0.0) <= cut_s
    return done


def span_s(arrival_s: Floats, e2e_s: Floats, done: Bools) -> float | None:
    """Seconds from the first arrival of any request to the last token of a finished one; None when none finished.
    Arrays are [num_requests], done as from `finished`."""
    if not done.any():
        return None
    return float((arrival_s + e2e_s)[done].max() - arrival_s.min())


def rate(amount: float, seconds: float | None) -> float | None:
    """amount / seconds; None when there is no time to divide by."""
    return amount / seconds if seconds else None


def mean(values: Floats) -> float | None:
    """Arithmetic mean; None when empty."""
    return float(values.mean()) if len(values) else None


def quantiles(values: Floats, probabilities: Iterable[float]) -> list[float | None]:
    """numpy's quantiles (method "linear"); None when empty."""
    wanted = list(probabilities)
    if not len(values):
        return [None] * len(wanted)
    return [float(value) for value in np.quantile(values, wanted)]


def _floats(values: npt.ArrayLike) -> Floats:
    return np.asarray(values, dtype=np.float64)
