"""vllm bench serve results: lengths per request, arrivals recorded or drawn again."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from simlora.errors import ConfigError
from simlora.workload.traces.reader import parse_trace
from simlora.workload.traces.table import TraceOptions, TraceTable

SUMMARY = {"backend": "vllm", "request_rate": 4.0, "burstiness": 1.0, "max_concurrency": None, "completed": 3}
BENCH = {**SUMMARY, "input_lens": [10, 20, 30], "output_lens": [1, 2, 3], "errors": ["", "", ""]}


def read(record: dict[str, Any], **options: object) -> TraceTable:
    return parse_trace(json.dumps(record), "bench.json", TraceOptions(**options))  # type: ignore[arg-type]


def test_lengths_and_drawn_arrivals() -> None:
    trace = read(BENCH, seed=3)
    assert trace.format == "vllm-bench"
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([10, 20, 30], [1, 2, 3])
    assert trace.arrival_s[0] == 0.0 and (np.diff(trace.arrival_s) > 0).all()
    assert trace.notes == ("arrival times are not recorded: drawn at 4 req/s, burstiness 1, seed 3",)
    assert (read(BENCH, seed=3).arrival_s == trace.arrival_s).all()


@pytest.mark.parametrize(("burstiness", "cv"), [(1.0, 1.0), (0.25, 2.0), (4.0, 0.5)])
def test_drawn_arrivals_have_the_recorded_rate_and_burstiness(burstiness: float, cv: float) -> None:
    size = 40_000
    record = {**BENCH, "input_lens": [1] * size, "output_lens": [1] * size, "errors": [""] * size}
    gaps_s = np.diff(read({**record, "burstiness": burstiness}).arrival_s)
    assert abs(gaps_s.mean() - 0.25) < 4.0 * 0.25 * cv / np.sqrt(size)
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(cv, rel=0.05)


@pytest.mark.parametrize("rate", ["inf", float("inf")])
def test_an_infinite_rate_sends_all_at_once(rate: object) -> None:
    trace = read({**BENCH, "request_rate": rate, "max_concurrency": 8})
    assert trace.arrival_s.tolist() == [0.0, 0.0, 0.0]
    assert trace.notes == (
        "request_rate inf: all 3 requests arrive at 0",
        "max_concurrency was 8 while recording; arrivals here do not wait for completions",
    )


def test_recorded_start_times_are_used_and_sorted() -> None:
    trace = read({**BENCH, "start_times": [1003.0, 1001.0, 1002.5], "max_concurrency": 8})
    assert trace.arrival_s.tolist() == [0.0, 1.5, 2.0]
    assert trace.prompt_tokens.tolist() == [20, 30, 10]
    assert trace.notes == ("2 rows were out of order by at most 2 s and have been sorted",)


def test_failed_requests_are_dropped_or_an_error() -> None:
    record = {**BENCH, "errors": ["", "timeout", ""], "output_lens": [1, 2, 0], "input_lens": [10, 20, 0]}
    trace = read(record)
    assert trace.prompt_tokens.tolist() == [10]
    assert trace.dropped[0].count == 2
    with pytest.raises(ConfigError) as caught:
        read({**record, "output_lens": [1, 2, 3], "input_lens": [1, 2, 3]}, failures="error")
    assert str(caught.value) == "bench.json: errors[1]: 'timeout': no failed request (or let failures be dropped)"


def test_pretty_printed_json_is_detected() -> None:
    assert len(parse_trace(json.dumps(BENCH, indent=1), "bench.json", TraceOptions())) == 3


def test_adapters_may_be_listed() -> None:
    trace = read({**BENCH, "models": ["a", None, "b"]}, adapter_column="models")
    assert trace.adapter is not None
    assert [trace.adapter.names[code] for code in trace.adapter.codes] == ["a", "", "b"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"output_lens": [1, 2]}, "input_lens: '3 values': 2, as output_lens has"),
        ({"input_lens": [10, -1, 5]}, "input_lens[1]: -1: a whole number of tokens of at least 0"),
        ({"input_lens": [10, 0, 5]}, "input_lens[1]: 0: a whole number of tokens of at least 1"),
        ({"input_lens": "many"}, "input_lens: 'str': a list with one value per request"),
        ({"request_rate": 0}, 'request_rate: 0: a rate above 0 per second, or "inf"'),
        ({"request_rate": "fast"}, "request_rate: 'fast': a rate above 0 per second, or \"inf\""),
        ({"burstiness": None}, "burstiness: None: a gamma shape above 0"),
        ({"errors": [""]}, "errors: '1 values': 3, as output_lens has"),
        ({"start_times": [1.0, "x", 2.0]}, "start_times[1]: 'x': a time of at least 0"),
    ],
)
def test_wrong_files(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read({**BENCH, **change})
    assert str(caught.value) == f"bench.json: {message}"


def test_a_summary_is_refused_with_the_flag_to_use() -> None:
    with pytest.raises(ConfigError) as caught:
        read({**SUMMARY, "request_throughput": 0.5})
    allowed = "missing: the file holds a summary only; record it with --save-detailed"
    assert str(caught.value) == f"bench.json: input_lens: None: {allowed}"


def test_a_unit_makes_no_sense() -> None:
    with pytest.raises(ConfigError) as caught:
        read(BENCH, unit="ms")
    assert str(caught.value) == "bench.json: unit: 'ms': none: vllm-bench files are in seconds"
