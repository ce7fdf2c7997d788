"""Reading recorded runs: what comes out, and what is refused with which message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from validate_runs import HEADER, ROWS, truth, write_run

from simlora.errors import ConfigError
from simlora.runs.recorded import read_recorded_run, run_folders
from simlora.validate.replay import measured_metrics


def test_requests_are_sorted_by_arrival(tmp_path: Path) -> None:
    recorded = read_recorded_run(write_run(tmp_path / "run"))
    requests = recorded.requests
    assert requests is not None
    assert requests.arrival_s.tolist() == [0.05, 0.1, 0.3]
    assert requests.adapter.tolist() == [2, 1, 0]
    assert requests.adapters.rank.tolist() == [0, 16, 8]
    assert requests.ttft_s.tolist() == [0.02, 0.05, 0.04]
    assert requests.preemptions is None
    assert recorded.name == "small"
    assert measured_metrics(recorded)["ttft_mean_s"] == pytest.approx((0.02 + 0.05 + 0.04) / 3)


def test_unfinished_requests_have_no_times(tmp_path: Path) -> None:
    rows = (*ROWS, "0.4,1,16,10,500,,,,")
    recorded = read_recorded_run(write_run(tmp_path / "run", {"cut_s": 1.5}, rows))
    assert recorded.requests is not None
    assert np.isnan(recorded.requests.e2e_s).tolist() == [False, False, False, True]
    assert measured_metrics(recorded)["request_throughput_rps"] == pytest.approx(3 / 0.55)


def test_what_finished_after_the_cut_does_not_count(tmp_path: Path) -> None:
    recorded = read_recorded_run(write_run(tmp_path / "run", {"cut_s": 0.26}))
    assert measured_metrics(recorded)["ttft_mean_s"] == pytest.approx((0.02 + 0.05) / 2)


def test_rejected_requests_took_no_part(tmp_path: Path) -> None:
    rows = tuple(f"{row},{status}" for row, status in zip(ROWS, ("completed", "completed", "completed"), strict=True))
    rows = (*rows, "0.2,3,16,10,5,,,,,rejected")
    recorded = read_recorded_run(write_run(tmp_path / "run", rows=rows, header=f"{HEADER},status"))
    assert recorded.requests is not None
    assert (len(recorded.requests), recorded.requests.rejected) == (3, 1)
    assert recorded.requests.adapters.count == 2


def test_preemptions_come_from_the_requests_or_from_the_steps(tmp_path: Path) -> None:
    steps = "t_s,running,waiting,kv_usage,preempted\n0.1,1,0,0.1,0\n0.2,2,1,0.2,3\n"
    recorded = read_recorded_run(write_run(tmp_path / "steps", steps=steps))
    assert measured_metrics(recorded)["preemptions"] == 3
    rows = tuple(f"{row},1" for row in ROWS)
    recorded = read_recorded_run(write_run(tmp_path / "own", rows=rows, header=f"{HEADER},preemptions", steps=steps))
    assert measured_metrics(recorded)["preemptions"] == 3


def test_adapters_may_have_names(tmp_path: Path) -> None:
    rows = tuple(row.replace(",1,16,", ",sql,16,").replace(",2,8,", ",chat,8,") for row in ROWS)
    residents = {"gpu": ["chat"], "host": ["sql", "chat"]}
    recorded = read_recorded_run(write_run(tmp_path / "run", {"initial_adapters": residents}, rows))
    assert recorded.requests is not None
    assert recorded.requests.adapters.names == ("chat", "sql")


BAD_RUNS: list[tuple[dict[str, Any], str, str]] = [
    ({"format": "simlora-run/2"}, "format", "simlora-run/1"),
    ({"format": ...}, "format", "required"),
    ({"gpu": ...}, "gpu", "required"),
    ({"engine": ...}, "engine", "required"),
    ({"cut_s": -1.0}, "cut_s", "above 0"),
    ({"cut_s": "soon"}, "cut_s", "must be a number"),
    ({"cutt_s": 5.0}, "cutt_s", "did you mean cut_s?"),
    ({"initial_adapter": None}, "initial_adapter", "did you mean initial_adapters?"),
    ({"endpoint": "grpc"}, "endpoint", "http"),
    ({"resolved": {"max_num_seqs": 0}}, "resolved.max_num_seqs", "at least 1"),
    ({"resolved": {"num_gpu_blocks": 10.5}}, "resolved.num_gpu_blocks", "whole number"),
    ({"offered": 4}, "offered", "4 rows, as run.json says"),
    ({"completed": 2}, "completed", "2 rows, as run.json says"),
    ({"initial_adapters": {"gpu": 3}}, "initial_adapters.gpu", "must be a list"),
]


@pytest.mark.parametrize(("changes", "key", "allowed"), BAD_RUNS)
def test_bad_run_files(tmp_path: Path, changes: dict[str, Any], key: str, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_recorded_run(write_run(tmp_path / "run", changes))
    assert caught.value.key == key
    assert allowed in caught.value.allowed
    assert "run" in caught.value.source


BAD_ROWS = [
    ("0.4,1,16,10,5,,0.3,,", "ttft_s", "given, since the request finished"),
    ("0.4,1,16,10,5,0.3,0.2,,", "e2e_s", "at least ttft_s"),
    ("0.4,1,16,10,5,,,,", "e2e_s", "run.json has no cut_s"),
    ("0.4,1,16,10,5,-0.1,0.2,,", "ttft_s", "at least 0"),
    ("0.4,1,16,10,5,x,0.2,,", "ttft_s", "a duration"),
    ("0.4,1,8,10,5,0.1,0.2,,", "rank", "the rank of adapter 1"),
    ("0.4,1,16,0,5,0.1,0.2,,", "prompt_tokens", "at least 1"),
    ("nan,1,16,10,5,0.1,0.2,,", "arrival_s", ""),
]


@pytest.mark.parametrize(("row", "column", "allowed"), BAD_ROWS)
def test_bad_rows_are_named_by_line_and_column(tmp_path: Path, row: str, column: str, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_recorded_run(write_run(tmp_path / "run", rows=(*ROWS, row)))
    assert caught.value.key == column
    assert caught.value.source.endswith("requests.csv:5")
    assert allowed in caught.value.allowed


BAD_TABLES = [
    ("decode", "batch,distinct_adapters,rank,prompt_tokens,itl_p50_s\n2,4,16,256,0.01\n", "distinct_adapters"),
    ("decode", "batch,distinct_adapters,rank,prompt_tokens,itl_p50_s\n2,0,16,256,0.01\n", "rank"),
    ("decode", "batch,rank,prompt_tokens,itl_p50_s\n2,16,256,0.01\n", "distinct_adapters"),
    ("prefill", "prompt_tokens,rank,repeat,ttft_s\n32,0,0,fast\n", "ttft_s"),
    ("load", "rank,phase,repeat,ttft_s\n8,tepid,0,0.1\n", "phase"),
    ("load", "rank,phase,repeat,ttft_s\n8,cold,-1,0.1\n", "repeat"),
    ("steps", "running,waiting\n1,2\n", "t_s"),
]


@pytest.mark.parametrize(("name", "text", "column"), BAD_TABLES)
def test_bad_tables(tmp_path: Path, name: str, text: str, column: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_recorded_run(write_run(tmp_path / "run", **{name: text}))
    assert caught.value.key == column
    assert f"run/{name}.csv" in caught.value.source


def test_no_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the folder of a recorded run"):
        read_recorded_run(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"run\.json"):
        read_recorded_run(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ConfigError, match="readable JSON"):
        read_recorded_run(tmp_path)
    with pytest.raises(ConfigError, match=r"requests\.csv"):
        read_recorded_run(write_run(tmp_path / "empty", rows=None))


def test_folders_of_runs_are_searched(tmp_path: Path) -> None:
    first = write_run(tmp_path / "campaign" / "a")
    second = write_run(tmp_path / "campaign" / "b")
    assert run_folders([tmp_path / "campaign"]) == [first, second]
    assert run_folders([tmp_path]) == [first, second]
    assert run_folders([second, first]) == [second, first]
    with pytest.raises(ConfigError):
        run_folders([])


def test_measured_runs_are_read() -> None:
    for folder in run_folders([truth()]):
        recorded = read_recorded_run(folder)
        assert recorded.name == folder.name
        if recorded.requests is None:
            assert recorded.decodes and (recorded.prefills or recorded.name.startswith("rep2"))
        else:
            assert measured_metrics(recorded)["request_throughput_rps"]
    cut = read_recorded_run(truth("l8r16-n8-u30"))
    assert cut.requests is not None and len(cut.requests) == 1133
    assert int(np.isnan(cut.requests.e2e_s).sum()) == 3
    assert measured_metrics(read_recorded_run(truth("kv8-long4")))["preemptions"] == 131
