"""Counts of requests and rates of requests and tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from simlora.results.latency import Measured
from simlora.results.metrics import metrics_from_requests, rate


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
