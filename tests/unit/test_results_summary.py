"""Definitions of a summary's values on small logs that can be checked by hand."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from results_logs import HOST_S, LOAD_S, OUT_S, play, random_log, scenario

import simlora
from simlora.engines.run_log import RUN_COLUMNS
from simlora.results.measured import Measured
from simlora.results.replicas import busy_intervals
from simlora.results.shares import request_seconds
from simlora.results.summary import summarize, to_json
from simlora.results.tenants import jain_index, tenants
from simlora.results.timeline import Timeline
from simlora.sim.log import ReplicaLog, SimulationLog

CONTRACT = {
    "scenario": None,
    "seed": None,
    "simlora_version": None,
    "calibration": ["id", "sha256", "extrapolated"],
    "requests": ["offered", "completed", "rejected", "unfinished"],
    "duration_s": None,
    "request_throughput_rps": None,
    "output_throughput_tps": None,
    "total_throughput_tps": None,
    "ttft_s": ["mean", "p50", "p90", "p95", "p99", "max", "censored_count", "censored_lower_bound_p99"],
    "tpot_s": ["mean", "p50", "p90", "p95", "p99", "max"],
    "itl_s": ["mean", "p50", "p90", "p95", "p99", "max"],
    "e2e_s": ["mean", "p50", "p90", "p95", "p99", "max"],
    "queue_s": ["mean", "p50", "p90", "p95", "p99", "max"],
    "slo": ["attainment", "goodput_rps"],
    "adapters": ["distinct", "gpu_hit_rate", "host_hit_rate", "loads", "load_bytes", "evictions", "churn_per_s"],
    "transfers": ["h2d_bytes", "h2d_busy_fraction", "stall_s"],
    "ranks": ["share_by_rank", "padded_compute_waste_fraction", "padded_memory_waste_bytes"],
    "memory": ["kv_blocks", "kv_usage_mean", "kv_usage_max", "preemptions"],
    "gpu": ["busy_fraction", "hbm_bandwidth_fraction", "flops_fraction"],
    "cost": ["gpus", "gpu_hours", "usd", "usd_per_1m_tokens", "usd_per_1m_output_tokens"],
    "bottleneck": ["binding", "shares"],
    "health": ["thrashing", "rule"],
    "replicas": None,
}
SHARES = [
    "queue_slots",
    "queue_kv",
    "queue_seqs",
    "queue_tokens",
    "route",
    "load",
    "prefill",
    "decode_base",
    "decode_lora",
    "host",
    "collective",
]


@pytest.fixture
def log() -> SimulationLog:
    """Four requests of three adapters over two slots; the last one comes 10 s later."""
    return play([0.0, 0.0, 0.0, 10.0], [1, 2, 3, 0], [4, 8, 2, 1]).log


def replaced(log: SimulationLog, **columns: object) -> SimulationLog:
    return dataclasses.replace(log, requests=dataclasses.replace(log.requests, **columns))


def test_every_contracted_key_in_order(log):
    summary = summarize(log)
    assert list(summary)[: len(CONTRACT)] == list(CONTRACT)
    for key, inner in CONTRACT.items():
        if inner is not None:
            assert list(summary[key])[: len(inner)] == inner, key
    assert list(summary["bottleneck"]["shares"]) == SHARES
    assert summary["simlora_version"] == simlora.__version__
    assert summary["calibration"] == {"id": "test", "sha256": "0" * 64, "extrapolated": {}}
    assert summary["notes"][0] == "a note"


def test_throughput_and_duration(log):
    summary = summarize(log)
    requests = log.requests
    span = requests.last_token_s.max() - 0.0
    assert summary["duration_s"] == span
    assert summary["request_throughput_rps"] == 4 / span
    assert summary["output_throughput_tps"] == 15 / span
    assert summary["total_throughput_tps"] == (15 + 4 * 32) / span


def test_tpot_is_undefined_for_one_token(log):
    summary, requests = summarize(log), log.requests
    tpot = (requests.last_token_s - requests.first_token_s)[:3] / (requests.output_tokens[:3] - 1)
    assert summary["tpot_s"]["mean"] == pytest.approx(tpot.mean())
    assert summary["tpot_s"]["max"] == pytest.approx(tpot.max())
    only_one = play([0.0], [0], [1]).log
    assert summarize(only_one)["tpot_s"] == dict.fromkeys(CONTRACT["tpot_s"])
    assert summarize(only_one)["itl_s"] == dict.fromkeys(CONTRACT["itl_s"])
    assert summarize(only_one)["slo"]["attainment"] == 1.0  # one token: no TPOT to miss


def test_attainment_is_over_offered_requests(log):
    assert summarize(log)["slo"]["attainment"] == 1.0
    rejected = replaced(log, status=np.array([0, 0, 1, 0]))
    summary = summarize(rejected)
    assert summary["requests"] == {"offered": 4, "completed": 3, "rejected": 1, "unfinished": 0}
    assert summary["slo"] == {"attainment": 0.75, "goodput_rps": 3 / summary["duration_s"]}
    slow = replaced(log, first_token_s=log.requests.first_token_s + np.array([0.6, 0, 0, 0]))
    assert summarize(slow)["slo"]["attainment"] == 0.75  # TTFT beyond 0.5 s


def test_unfinished_requests_are_censored_not_dropped():
    log = play([0.0, 0.1, 0.2], [0, 0, 0], [50, 50, 500], seats=1, cut_s=0.8).log
    summary = summarize(log)
    assert summary["requests"]["unfinished"] > 0
    waiting = np.isnan(log.requests.first_token_s)
    assert summary["ttft_s"]["censored_count"] == waiting.sum() > 0
    known = (log.requests.first_token_s - log.requests.arrival_s)[~waiting]
    so_far = 0.8 - log.requests.arrival_s[waiting]
    assert summary["ttft_s"]["censored_lower_bound_p99"] == np.quantile(np.concatenate((known, so_far)), 0.99)
    assert summary["ttft_s"]["max"] == known.max()


def test_warm_up_leaves_percentiles_but_not_cost_or_counts(log):
    warm = dataclasses.replace(log, scenario=scenario(workload={"duration_s": 20.0, "warmup_s": 5.0}))
    summary, cold = summarize(warm), summarize(log)
    assert summary["ttft_s"]["max"] == (log.requests.first_token_s - log.requests.arrival_s)[3]
    assert summary["itl_s"]["max"] is None  # the one request after the warm-up has one token
    for key in ("requests", "cost", "slo", "request_throughput_rps", "bottleneck"):
        assert summary[key] == cold[key]
    assert any("3 requests that arrived in the first 5 s" in note for note in summary["notes"])


def test_cost_counts_start_up_and_idle_time(log):
    cost = summarize(log)["cost"]
    hours = (30.0 + log.end_s) / 3600
    assert cost["gpu_hours"] == pytest.approx(hours)
    assert cost["usd"] == pytest.approx(hours * log.scenario.cost.gpu_hour_usd)
    assert cost["usd_per_1m_output_tokens"] == pytest.approx(cost["usd"] / 15 * 1e6)
    assert cost["usd_per_1m_tokens"] == pytest.approx(cost["usd"] / (15 + 4 * 32) * 1e6)
    assert any("engine start-up is" in note for note in summarize(log)["notes"])


def test_adapters_and_transfers(log):
    summary, replica = summarize(log), log.replicas[0]
    assert summary["adapters"]["distinct"] == 3
    assert summary["adapters"]["loads"] == replica.host_hits == 3
    assert summary["adapters"]["gpu_hit_rate"] == 0.0
    assert summary["adapters"]["host_hit_rate"] == 1.0
    assert summary["adapters"]["churn_per_s"] == replica.evictions / log.end_s
    assert summary["transfers"]["h2d_bytes"] == 3_000_000
    assert summary["transfers"]["stall_s"] == pytest.approx(3 * LOAD_S)
    link = log.scenario.gpu_spec.host_link_bytes_per_s
    assert summary["transfers"]["h2d_busy_fraction"] == 3_000_000 / (link * log.end_s)
    assert summary["ttft_by_tier_s"]["slot"]["requests"] == 1
    assert summary["ttft_by_tier_s"]["host"]["requests"] == 3
    assert summary["active_adapters"]["max"] == 3
    assert 0 < summary["active_adapters"]["over_slots_fraction"] < 1


def test_ranks_and_padding(log):
    ranks = summarize(log)["ranks"]
    assert ranks["share_by_rank"] == {"0": 0.25, "8": 0.5, "64": 0.25}
    assert ranks["padded_compute_waste_fraction"] == pytest.approx(0.25)  # as every run says
    mean_rank = (8 + 64 + 8) / 3
    per_rank = 92e6 / 16  # engines: 92 MB for a rank-16 slot of this model
    assert ranks["padded_memory_waste_bytes"] == pytest.approx(2 * (64 - mean_rank) * per_rank, rel=0.01)
    off = dataclasses.replace(log, scenario=scenario(engine={"enable_lora": False}, adapters={"count": 0}))
    assert summarize(off)["ranks"]["padded_memory_waste_bytes"] == 0


def test_gpu_and_memory_use(log):
    summary, runs = summarize(log), log.replicas[0].runs
    duration = Timeline(log.replicas[0]).duration_s
    busy = duration - runs["load_s"] - HOST_S * runs["steps"]
    assert summary["gpu"]["busy_fraction"] == pytest.approx(busy.sum() / log.end_s)
    assert summary["memory"]["kv_usage_mean"] == pytest.approx(
        (runs["kv_used_blocks"] * duration).sum() / 1000 / log.end_s
    )
    assert summary["memory"]["kv_usage_max"] == runs["kv_used_blocks"].max() / 1000
    weights = log.scenario.model_spec.weight_bytes - 128256 * 4096 * 2
    floor = weights * runs["steps"].sum() / (4.8e12 * log.end_s)
    assert floor < summary["gpu"]["hbm_bandwidth_fraction"] < 1.2 * floor
    flops = 2 * 7.5e9 * (runs["decode_count"] * runs["steps"] + runs["prefill_tokens"]).sum() / (989e12 * log.end_s)
    assert summary["gpu"]["flops_fraction"] == pytest.approx(flops, rel=0.1)


def test_asynchronous_gaps_split_into_the_gpu_time_of_the_step_before_host_and_load():
    columns = {name: np.zeros(3) for name in RUN_COLUMNS}
    columns["steps"] = np.array([1.0, 4.0, 1.0])
    columns["start_s"] = np.array([0.0, 0.030, 0.120])
    columns["first_gap_s"] = np.array([0.030, 0.060, 0.012])
    columns["gap_s"] = np.array([0.0, 0.010, 0.0])
    columns["host_s"] = np.array([0.030, 0.004, 0.012])
    columns["base_s"] = np.array([0.020, 0.008, 0.001])
    columns["lora_s"] = np.array([0.010, 0.002, 0.001])
    columns["load_s"] = np.array([0.0, 0.056, 0.0])
    timeline = Timeline(ReplicaLog(columns, True, 1, 10, 16, 2, 0, 0, 0, 0, 0, 0, 0))
    head = {name: parts[0].tolist() for name, parts in timeline.parts.items()}
    # After an idle GPU everything is host; then 30 ms of GPU time hide all but 30 of the 56 ms of the load.
    assert head["host"] == pytest.approx([0.030, 0.0, 0.002])
    assert head["load"] == pytest.approx([0.0, 0.030, 0.0])
    assert head["decode_base"] == pytest.approx([0.0, 0.020, 0.008])
    assert head["decode_lora"] == pytest.approx([0.0, 0.010, 0.002])
    tail = {name: parts[1].tolist() for name, parts in timeline.parts.items()}
    assert tail["decode_base"] == pytest.approx([0.0, 0.024, 0.0])
    assert tail["decode_lora"] == pytest.approx([0.0, 0.006, 0.0])
    assert timeline.gpu_s.tolist() == pytest.approx([0.030, 0.040, 0.002])


def test_gaps_across_preemptions_count_in_itl_and_as_waiting_for_kv(log):
    gap = 0.05
    interrupted = replaced(log, interrupted_gaps={1: (gap,)}, preemptions=np.array([0, 1, 0, 0]))
    assert summarize(interrupted)["itl_s"]["max"] == gap
    before, after = request_seconds(Measured(log)), request_seconds(Measured(interrupted))
    assert after["queue_kv"] - before["queue_kv"] == pytest.approx(gap)
    assert sum(after.values()) == pytest.approx(sum(before.values()))


def test_thrashing_and_saturation_are_said():
    calm = summarize(play([0.0, 5.0, 10.0], [1, 1, 1], [20, 20, 20]).log)
    assert calm["health"] == {"thrashing": False, "rule": "load + queue_slots > 0.2 of request-seconds"}
    assert calm["saturation"]["confident"] and calm["saturation"]["margin_fraction"] > 0.5
    busy = summarize(play(list(np.linspace(0, 2, 80)), [1, 2, 3, 4] * 20, [20] * 80).log)
    assert busy["health"]["thrashing"] is True
    assert not busy["saturation"]["confident"]
    assert any(note.startswith("thrashing") for note in busy["notes"])
    assert any(note.startswith("near saturation") for note in busy["notes"])


def test_backlog_that_grows_is_recognised():
    steady = play(list(np.linspace(0, 20, 100)), [0] * 100, [10] * 100, seats=64).log
    overload = play(list(np.linspace(0, 2, 400)), [0] * 400, [10] * 400, seats=4).log
    assert summarize(steady)["saturation"]["confident"]
    assert summarize(overload)["saturation"]["resource"] == "rate"
    assert summarize(overload)["saturation"]["utilisation"] > 1


def test_tenants(log):
    rows = {row.adapter: row for row in tenants(log)}
    assert list(rows) == [0, 1, 2, 3]
    assert (rows[2].rank, rows[2].requests, rows[2].completed, rows[2].attainment) == (64, 1, 1, 1.0)
    assert rows[0].slowdown == pytest.approx(1.08, abs=0.01)  # 1 ms on the way in, then 12.5 ms
    assert rows[3].slowdown > rows[1].slowdown > 1  # the third adapter waits for a slot
    assert rows[0].tpot_mean_s is None
    assert summarize(log)["tenants"]["count"] == 4


def test_jain_index():
    assert jain_index(np.array([0.5, 0.5, 0.5])) == 1.0
    assert jain_index(np.array([1.0, 0.0, 0.0, 0.0])) == 0.25
    assert jain_index(np.zeros(3)) is None


def test_busy_intervals_merge_per_adapter():
    adapter = np.array([1, 2, 1, 1])
    begin, end = busy_intervals(adapter, np.array([0.0, 0.5, 1.0, 5.0]), np.array([2.0, 0.7, 3.0, 6.0]))
    order = np.argsort(begin)
    assert begin[order].tolist() == [0.0, 0.5, 5.0]
    assert end[order].tolist() == pytest.approx([3.0, 0.7, 6.0])


def test_extrapolated_terms_are_shares_of_step_time():
    log = random_log(50, 100)
    stepped = Timeline(log.replicas[0]).duration_s.sum()
    assert summarize(log)["calibration"]["extrapolated"] == {"lora.slots": log.extrapolated_s["lora.slots"] / stepped}


def test_nothing_happened():
    summary = summarize(random_log(0, 0))
    assert summary["requests"]["offered"] == 0
    assert summary["bottleneck"]["binding"] is None
    assert summary["slo"] == {"attainment": None, "goodput_rps": None}
    assert summary["request_throughput_rps"] == 0.0
    json.loads(to_json(summary))


def test_route_and_front_end():
    played = play([0.0], [0], [3])
    spent = request_seconds(Measured(played.log))
    assert spent["route"] == pytest.approx(0.001)
    assert spent["host"] == pytest.approx(OUT_S + 2 * HOST_S)
