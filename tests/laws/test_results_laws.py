"""Laws of results that hold for every log."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[1] / "unit"))

from results_logs import Played, play, random_log

from simlora.results.measured import Measured, gap_segments
from simlora.results.metrics import metrics_from_requests
from simlora.results.quantiles import expand
from simlora.results.shares import CATEGORIES, request_seconds
from simlora.results.summary import summarize, to_json
from simlora.results.tenants import tenants
from simlora.results.token_gaps import token_gaps

request = st.tuples(st.floats(0, 2), st.integers(0, 5), st.integers(1, 30))


@st.composite
def played(draw: st.DrawFn) -> Played:
    rows = draw(st.lists(request, min_size=1, max_size=25))
    return play(
        [row[0] for row in rows],
        [row[1] for row in rows],
        [row[2] for row in rows],
        seats=draw(st.integers(1, 6)),
        slots=draw(st.integers(1, 3)),
        coalesce=draw(st.booleans()),
        cut_s=draw(st.sampled_from([None, 0.3, 1.0])),
    )


logs = st.builds(
    random_log,
    requests=st.integers(0, 60),
    runs=st.integers(0, 50),
    seed=st.integers(0, 2**32),
    replicas=st.integers(1, 3),
)


@settings(max_examples=120)
@given(played())
def test_request_seconds_equal_the_engines_own_account(run: Played):
    spent = request_seconds(Measured(run.log))
    assert list(spent) == list(CATEGORIES)
    if run.log.end_s != 0.3 and run.log.end_s != 1.0:  # a cut falls into a step, which the engine accounts in full
        for name, seconds in run.spent.items():
            assert spent[name] == pytest.approx(seconds, abs=1e-9), name
    requests = run.log.requests
    ends = np.where(np.isnan(requests.last_token_s), run.log.end_s, requests.last_token_s)
    assert sum(spent.values()) == pytest.approx(np.sum(np.maximum(ends - requests.arrival_s, 0)), abs=1e-9)


@settings(max_examples=100)
@given(played())
def test_every_gap_between_tokens_is_counted_once(run: Played):
    if run.log.requests.status.any():
        return
    gaps = np.sort(np.concatenate([np.diff(times) for times in run.tokens]))
    values, weights = expand(gap_segments(Measured(run.log)))
    np.testing.assert_allclose(np.sort(np.repeat(values, weights.astype(int))), gaps, atol=1e-12)


@settings(max_examples=100)
@given(played())
def test_gaps_of_each_request_are_those_between_its_tokens(run: Played):
    largest, median = token_gaps(Measured(run.log))
    for index, times in enumerate(run.tokens):
        if run.log.requests.status[index] == 0 and len(times) > 1:
            assert largest[index] == pytest.approx(np.diff(times).max(), abs=1e-12)
            assert median[index] == pytest.approx(np.median(np.diff(times)), abs=1e-12)
        else:
            assert math.isnan(largest[index]) and math.isnan(median[index])


@settings(max_examples=80)
@given(logs)
def test_summary_laws(log):
    summary = summarize(log)
    text = to_json(summary)
    assert json.loads(text) == summary
    assert not {"NaN", "Infinity", "-Infinity"} & set(text.replace(",", " ").split())
    counts = summary["requests"]
    assert counts["offered"] == counts["completed"] + counts["rejected"] + counts["unfinished"]
    for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s", "queue_s"):
        block = summary[name]
        order = [block[key] for key in ("p50", "p90", "p95", "p99", "max")]
        assert (None in order) == (order == [None] * 5)
        if None not in order:
            assert order == sorted(order)
            assert block["mean"] <= block["max"] * (1 + 1e-12)
    shares = [share for share in summary["bottleneck"]["shares"].values() if share is not None]
    assert not shares or (sum(shares) == pytest.approx(1, abs=1e-12) and min(shares) >= 0)
    fractions = [
        summary["slo"]["attainment"],
        summary["adapters"]["gpu_hit_rate"],
        summary["adapters"]["host_hit_rate"],
        summary["ranks"]["padded_compute_waste_fraction"],
        summary["memory"]["kv_usage_mean"],
        summary["memory"]["kv_usage_max"],
        summary["tenants"]["jain_index"],
        summary["active_adapters"]["over_slots_fraction"],
        *summary["calibration"]["extrapolated"].values(),
        *(tenant["attainment"] for tenant in summary["tenants"]["worst"]),
    ]
    assert all(value is None or 0 <= value <= 1 + 1e-9 for value in fractions)
    assert (
        summary["slo"]["goodput_rps"] is None
        or summary["slo"]["goodput_rps"] <= summary["request_throughput_rps"] + 1e-9
    )


@settings(max_examples=40)
@given(logs)
def test_the_same_log_gives_the_same_bytes(log):
    assert to_json(summarize(log)) == to_json(summarize(log))


@settings(max_examples=60)
@given(logs)
def test_tenants_add_up(log):
    rows = tenants(log)
    counts = summarize(log)["requests"]
    assert sum(row.requests for row in rows) == counts["offered"]
    assert sum(row.completed for row in rows) == counts["completed"]
    assert [row.adapter for row in rows] == sorted({row.adapter for row in rows})
    assert all(row.slowdown is None or row.slowdown >= 1 for row in rows)


@settings(max_examples=60)
@given(logs)
def test_metrics_agree_with_the_summary(log):
    measured, summary = Measured(log), summarize(log)
    requests = log.requests
    metrics = metrics_from_requests(requests.arrival_s, measured.ttft_s, measured.e2e_s, requests.output_tokens)
    assert (metrics["request_throughput_rps"] or 0.0) == summary["request_throughput_rps"]
    assert (metrics["output_throughput_tps"] or 0.0) == summary["output_throughput_tps"]
    assert metrics["tpot_p99_s"] == summary["tpot_s"]["p99"]
    assert metrics["e2e_mean_s"] == summary["e2e_s"]["mean"]
