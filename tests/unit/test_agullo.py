"""The published runs of vLLM 0.8.5: rows, the client that sent the requests, the server's stalls, and the scores."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from accuracy_agullo import Result, score, slots_agreement
from agullo_client import LONGEST_PROMPT, SHORTEST, arrivals, lengths, requests_of
from agullo_rows import AgulloRow, read_rows
from agullo_run import metrics_of, play, scenario_of
from agullo_scrape import Stall, delivered, merged_tokens

ROOT = Path(__file__).parents[2]

CSV = ROOT.parent / "shared" / "data" / "agullo_vllm_h100_multilora_runs.csv"
ROW = AgulloRow(
    path="digital_twin_modelling/real_results/llama-3.1-8b-instruct/rank_16_rates_0.1_0.05_0.025/_8_8_16_",
    model="llama-3.1-8b",
    count=8,
    rates_rps=(0.1, 0.05, 0.025),
    ranks=(8, 16),
    max_loras=8,
    max_cpu_loras=8,
    max_lora_rank=16,
    max_num_seqs=2048,
    total_time_s=600.0,
    offered_rps=0.5,
    prompt_tokens=222.0,
    output_tokens=194.0,
    measured={"throughput_rps": 0.48, "ttft_s": 0.035, "itl_s": 0.0147, "tpot_s": 0.0148},
)


def result(slots: int, measured: float, simulated: float, ttft_s: float = 0.05, offered: float = 10.0) -> Result:
    values = {"throughput_rps": measured, "ttft_s": ttft_s, "itl_s": 0.02, "tpot_s": 0.02}
    row = replace(ROW, max_loras=slots, offered_rps=offered, measured=values)
    return Result(row, values | {"throughput_rps": simulated, "ttft_s": 2 * ttft_s})


def rows() -> list[AgulloRow]:
    if not CSV.exists():
        pytest.skip("needs ../shared/data/agullo_vllm_h100_multilora_runs.csv")
    return read_rows(CSV)[0]


def test_rows_of_another_engine_are_left_out_by_name() -> None:
    rows()
    found, left_out = read_rows(CSV)
    assert len(found) == 553 and sum(left_out.values()) == 544
    assert all("0.5.0" in reason for reason in left_out)


def test_rates_and_ranks_come_from_the_row() -> None:
    by_path = {row.path: row for row in rows()}
    mixed = next(row for path, row in by_path.items() if "rate_0.4-0.05-0.00625_size_8-16-32" in path)
    assert mixed.rates_rps == (0.4, 0.05, 0.00625) and mixed.ranks == (8, 16, 32)
    twin = next(row for path, row in by_path.items() if "llama" in path)
    assert twin.ranks == (8, 16) and not twin.fitted
    assert sum(row.fitted for row in by_path.values()) == 163


def test_the_client_sends_as_many_requests_as_published() -> None:
    for row in rows():
        if row.max_loras == row.count and row.count in (8, 16, 32, 64) and row.offered_rps < 20:
            rates = [row.rates_rps[index % 3] for index in range(row.count)]
            sent = len(arrivals(rates, row.total_time_s)[0]) / row.total_time_s
            assert sent == pytest.approx(row.measured["throughput_rps"], rel=0.015), row.path


def test_arrivals_are_sorted_and_of_all_adapters() -> None:
    times, adapters = arrivals([0.5, 0.1], 1000.0)
    assert (np.diff(times) >= 0).all() and times[-1] < 1000.0
    counts = np.bincount(adapters)
    assert counts[1] == pytest.approx(500, rel=0.15) and counts[2] == pytest.approx(100, rel=0.35)


def test_lengths_have_the_means_asked_for() -> None:
    prompt, output = lengths(20_000, 222.0, 190.0, np.random.default_rng(1))
    assert prompt.mean() == pytest.approx(222.0, rel=0.01) and output.mean() == pytest.approx(190.0, rel=0.02)
    assert prompt.min() >= SHORTEST and prompt.max() <= LONGEST_PROMPT
    assert np.median(prompt) < 120 < np.median(output)


def test_more_arrivals_than_connections_are_thinned_out() -> None:
    busy = replace(ROW, rates_rps=(10.0,), offered_rps=80.0)
    table = requests_of(busy)
    assert 26_000 < len(table) < 0.99 * 80 * 600


def test_a_stall_holds_back_what_comes_meanwhile() -> None:
    stall = Stall(10.0, 0.5, 0.5)
    assert stall.end_s == 11.0
    assert stall.handled_s(10.0) == 10.5 and stall.handled_s(10.4) == pytest.approx(10.7)
    assert stall.handled_s(11.5) == 11.5
    times = delivered(np.array([9.0, 10.0, 10.4, 12.0, np.nan]), [stall])
    assert times[:4].tolist() == pytest.approx([9.0, 10.5, 10.7, 12.0]) and np.isnan(times[4])


def test_tokens_of_a_stall_come_in_one_chunk_unless_a_step_has_many() -> None:
    runs = {"start_s": np.array([0.0, 50.0]), "steps": np.array([1000.0, 1000.0])}
    stalls = [Stall(10.0, 1.0, 0.0)]
    few = merged_tokens(runs | {"decode_count": np.array([10.0, 10.0])}, stalls)
    assert few == pytest.approx(10 * (20 - 1), rel=0.1)
    assert merged_tokens(runs | {"decode_count": np.array([200.0, 200.0])}, stalls) == 0.0


def test_metrics_count_what_finished() -> None:
    arrival, first, last = np.array([0.0, 1.0, 2.0]), np.array([0.5, 1.5, 2.5]), np.array([1.5, 3.5, np.nan])
    found = metrics_of(arrival, first, last, np.array([11, 21, 5]), 0.0, 10.0)
    assert found["throughput_rps"] == 0.2 and found["ttft_s"] == 0.5
    assert found["itl_s"] == pytest.approx(3.0 / 30) and found["tpot_s"] == pytest.approx(0.1)


def test_scores() -> None:
    sweep = [result(8, 9.0, 9.0), result(16, 9.9, 9.9, ttft_s=2.0), result(32, 9.95, 9.0, ttft_s=3.0)]
    found = score(sweep)
    assert found["throughput_smape"] == pytest.approx(2 * 0.95 / 18.95 / 3)
    assert found["throughput_saturated_smape"] == 0.0
    assert found["ttft_smape"] is None  # no finished row is calm
    assert found["ttft_knee_median_factor"] == 2.0 and found["rows"] == 3
    assert slots_agreement(sweep) == 1.0  # 16 slots are within 2 % of the best
    assert slots_agreement([*sweep[:2], result(32, 8.0, 12.0)]) == 0.0
    assert slots_agreement(sweep[:2]) is None


def test_a_row_is_a_scenario_of_the_older_engine() -> None:
    scenario = scenario_of(ROW, "nvidia-h200")
    engine = scenario.engine
    assert engine.version == "0.8.5" and engine.max_num_batched_tokens == 2048 and not engine.enable_prefix_caching
    assert scenario.gpu_spec.name == "h100-64gb" and scenario.adapters.preload


def test_a_light_row_is_played_to_its_end() -> None:
    played = play(ROW)
    assert played.metrics["throughput_rps"] == pytest.approx(0.48, rel=0.1)
    assert 0.005 < played.metrics["tpot_s"] < 0.05 and played.stalls


def test_columns_that_are_missing_are_a_reason(tmp_path: Path) -> None:
    if not CSV.exists():
        pytest.skip("needs ../shared/data/agullo_vllm_h100_multilora_runs.csv")
    with CSV.open(newline="") as file:
        records = [record for record in csv.DictReader(file) if record["model"].startswith("qwen")][:2]
    records[0]["offered_req_s"] = ""
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(records[0]))
        writer.writeheader()
        writer.writerows(records)
    found, left_out = read_rows(path)
    assert len(found) == 1 and left_out == {"no offered_req_s": 1}
