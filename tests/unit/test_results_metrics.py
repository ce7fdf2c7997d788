"""The metrics that both sides of a validation use."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from simlora.results.metrics import METRICS, metrics_from_frame, metrics_from_requests

ARRIVAL, TTFT, E2E, OUTPUT = [1.0, 2.0, 3.0], [0.1, 0.2, 0.3], [1.1, 0.2, 2.3], [11, 1, 21]


def test_definitions():
    metrics = metrics_from_requests(ARRIVAL, TTFT, E2E, OUTPUT, preemptions=[0, 2, 1])
    assert list(metrics) == list(METRICS)
    span = 5.3 - 1.0
    assert metrics["request_throughput_rps"] == pytest.approx(3 / span)
    assert metrics["output_throughput_tps"] == pytest.approx(33 / span)
    assert metrics["ttft_mean_s"] == pytest.approx(0.2)
    assert metrics["ttft_p99_s"] == np.quantile(TTFT, 0.99)
    assert metrics["tpot_mean_s"] == pytest.approx(0.1)  # the request of one token has none
    assert metrics["e2e_mean_s"] == pytest.approx(1.2)
    assert metrics["preemptions"] == 3


def test_cut_leaves_out_what_finished_later():
    cut = metrics_from_requests(ARRIVAL, TTFT, E2E, OUTPUT, cut_s=3.0)
    assert cut["request_throughput_rps"] == pytest.approx(2 / (2.2 - 1.0))
    assert cut["ttft_mean_s"] == pytest.approx(0.15)
    assert cut["preemptions"] is None


def test_unfinished_rows_and_mask():
    unfinished = metrics_from_requests(ARRIVAL, [0.1, 0.2, np.nan], [1.1, 0.2, np.nan], OUTPUT)
    masked = metrics_from_requests(ARRIVAL, TTFT, E2E, OUTPUT, completed=[True, True, False])
    assert unfinished == masked
    assert unfinished["e2e_mean_s"] == pytest.approx(0.65)


def test_nothing_finished():
    metrics = metrics_from_requests(ARRIVAL, TTFT, E2E, OUTPUT, cut_s=0.5, preemptions=0)
    assert metrics == dict.fromkeys(METRICS) | {"preemptions": 0.0}
    assert metrics_from_requests([], [], [], [])["ttft_p50_s"] is None


def test_frame():
    columns = {"arrival_s": ARRIVAL, "ttft_s": TTFT, "e2e_s": E2E, "output_tokens": OUTPUT}
    assert metrics_from_frame(pd.DataFrame(columns)) == metrics_from_requests(ARRIVAL, TTFT, E2E, OUTPUT)
    frame = pd.DataFrame(columns | {"preemptions": [1, None, 0]})
    assert metrics_from_frame(frame)["preemptions"] == 1
