"""The readers on real files, against counts and rates worked out from them with other tools."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from support.counting import calls

from simlora.errors import ConfigError
from simlora.workload.traces.describe import describe_trace
from simlora.workload.traces.reader import parse_trace, read_trace
from simlora.workload.traces.replay import adapters_from_trace, trace_requests
from simlora.workload.traces.simlora_csv import canonical_text
from simlora.workload.traces.table import TraceOptions

SHARED = Path(__file__).parents[2].parent / "shared"


def sample(name: str) -> Path:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"this test needs ../shared/{name}")
    return path


@pytest.mark.parametrize(
    ("name", "rows", "span_s", "rate_rps", "cv", "prompt_mean", "prompt_max", "output_mean", "output_max"),
    [
        ("data/azure_llm_2023_code.csv", 8819, 3436, 2.57, 13.2, 2048, 7437, 27.9, 1899),
        ("data/azure_llm_2023_conv.csv", 19366, 3502, 5.53, 1.09, 1155, 14050, 211, 1000),
    ],
)
def test_azure_2023(
    name: str,
    rows: int,
    span_s: float,
    rate_rps: float,
    cv: float,
    prompt_mean: float,
    prompt_max: int,
    output_mean: float,
    output_max: int,
) -> None:
    summary = describe_trace(read_trace(sample(name)))
    assert (summary.format, summary.rows, summary.notes) == ("azure", rows, ())
    assert summary.span_s == pytest.approx(span_s, abs=1.0)
    assert summary.request_rate_rps == pytest.approx(rate_rps, abs=0.005)
    assert summary.interarrival_cv == pytest.approx(cv, rel=0.01)
    assert summary.prompt_tokens.mean == pytest.approx(prompt_mean, abs=0.6)
    assert summary.output_tokens.mean == pytest.approx(output_mean, abs=0.6)
    assert (summary.prompt_tokens.max, summary.output_tokens.max) == (prompt_max, output_max)


def test_azure_conversation_takes_few_calls_a_row() -> None:
    path = sample("data/azure_llm_2023_conv.csv")
    rows = len(read_trace(path))
    assert calls(lambda: read_trace(path)) < 6 * rows


@pytest.mark.benchmark
def test_azure_conversation_reads_in_half_a_second() -> None:
    path = sample("data/azure_llm_2023_conv.csv")
    start = time.perf_counter()
    read_trace(path)
    assert time.perf_counter() - start < 0.5


def test_mooncake_conversation_and_its_coarse_clock() -> None:
    path = sample("data/mooncake_conversation_trace_first5000.jsonl")
    trace = read_trace(path)
    summary = describe_trace(trace, max_model_len=8192)
    assert (summary.format, summary.rows, summary.distinct_stamps) == ("mooncake", 5000, 532)
    assert summary.prompt_tokens.mean == pytest.approx(13_066, abs=1)
    assert summary.over_model_len_fraction == pytest.approx(0.495, abs=0.0006)
    assert summary.tick_s == pytest.approx(3.0, abs=0.01)
    spread = describe_trace(read_trace(path, TraceOptions(jitter=True)))
    assert spread.distinct_stamps == 5000
    assert summary.interarrival_cv is not None and summary.interarrival_cv > 2.5
    assert spread.interarrival_cv == pytest.approx(1.0, abs=0.15)


def test_mooncake_synthetic() -> None:
    summary = describe_trace(read_trace(sample("data/mooncake_synthetic_trace.jsonl")), max_model_len=8192)
    assert (summary.rows, summary.distinct_stamps, summary.prompt_tokens.max) == (3993, 3982, 191_378)
    assert summary.over_model_len_fraction == pytest.approx(0.531, abs=0.0006)


def test_inference_perfs_sample_is_azures_format() -> None:
    assert read_trace(sample("data/format_samples/inference_perf_trace.csv")).format == "azure"


def test_a_benchmark_summary_and_foreign_formats_are_refused() -> None:
    with pytest.raises(ConfigError, match="record it with --save-detailed"):
        read_trace(sample("data/format_samples/vllm_bench_result_agullo_fork_llama31_8b.json"))
    for name in ("data/format_samples/llmservingsim_example_trace.jsonl", "data/slora_paper_results.csv"):
        with pytest.raises(ConfigError, match="not a header of azure"):
            read_trace(sample(name))


@pytest.mark.parametrize("run", ["base-chat12", "kv8-long4", "l32r64-n32-mix20", "l8r16-n8-base50", "l8r16-n8-u30"])
def test_recorded_runs_replay_with_their_own_adapters(run: str) -> None:
    trace = read_trace(sample(f"truth/vllm-0.20.2-h200/{run}"))
    adapters = adapters_from_trace(trace)
    table = trace_requests(trace, adapters, "sample", 1)
    assert trace.rank is not None
    assert (adapters.rank[table.adapter] == trace.rank).all()
    assert (np.diff(table.arrival_s) >= 0).all()
    again = parse_trace(canonical_text(trace), "again", TraceOptions())
    assert again.arrival_s.tolist() == trace.arrival_s.tolist()
    assert trace_requests(again, adapters, "sample", 1).adapter.tolist() == table.adapter.tolist()
