"""Recorded runs: a folder or its requests.csv, in offered order, measured times left aside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simlora.errors import ConfigError
from simlora.workload.traces.reader import read_trace
from simlora.workload.traces.table import TraceOptions

REQUESTS = (
    "arrival_s,adapter,rank,prompt_tokens,output_tokens,ttft_s,e2e_s,itl_max_s,itl_p50_s\n"
    "90.25,2,16,629,1309,0.37,17.0,0.23,0.01\n"
    "0.5,1,16,371,1500,,,,\n"
    "40,0,0,20,7,0.1,0.2,0.1,0.1\n"
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "myrun"
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"format": "simlora-run/1", "gpu": "nvidia-h200"}))
    (folder / "requests.csv").write_text(REQUESTS)
    return folder


def test_any_order_is_sorted_the_clock_kept_and_unfinished_requests_included(run: Path) -> None:
    for path in (run, run / "requests.csv"):
        trace = read_trace(path)
        assert trace.format == "simlora-run"
        assert trace.arrival_s.tolist() == [0.5, 40.0, 90.25]
        assert trace.rank is not None and trace.rank.tolist() == [16, 0, 16]
        assert trace.adapter is not None
        assert [trace.adapter.names[code] for code in trace.adapter.codes] == ["1", "0", "2"]
        assert trace.notes == ("2 rows were out of order by at most 89.75 s and have been sorted",)
        assert trace.where(0).endswith("requests.csv:3")


def test_a_run_without_requests_is_refused(run: Path) -> None:
    (run / "requests.csv").unlink()
    with pytest.raises(ConfigError) as caught:
        read_trace(run)
    assert str(caught.value) == "myrun: requests.csv: None: missing: the run holds no requests to replay"


def test_another_version_is_refused(run: Path) -> None:
    (run / "run.json").write_text('{"format": "simlora-run/9"}')
    with pytest.raises(ConfigError) as caught:
        read_trace(run)
    assert str(caught.value) == "myrun/run.json: format: 'simlora-run/9': simlora-run/1"


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_trace(tmp_path)
    allowed = "missing: a trace is a file, or the folder of a recorded run"
    assert str(caught.value) == f"{tmp_path}: run.json: None: {allowed}"


def test_a_folder_has_one_format(run: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_trace(run, TraceOptions(format="csv"))
    assert str(caught.value) == f"{run}: format: 'csv': one of auto, simlora-run"
