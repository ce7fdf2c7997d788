"""The folder of a run: formats, round trips, and all or nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from results_logs import play, random_log

from simlora.errors import ConfigError
from simlora.results.files import check_folder, read_summary, run_writers, text_writer, write_folder
from simlora.results.measured import Measured
from simlora.results.metrics import metrics_from_frame, metrics_from_requests
from simlora.results.own_run import COLUMNS
from simlora.results.summary import summarize
from simlora.results.timeseries import COLUMNS as SERIES_COLUMNS
from simlora.results.timeseries import interval_edges
from simlora.runs.write import REQUEST_COLUMNS

SHARED = Path(__file__).parents[2].parent / "shared"


@pytest.fixture
def log():
    return play([0.0, 0.2, 0.1, 3.0], [1, 2, 3, 0], [4, 8, 2, 1]).log


def write(log, folder):
    return write_folder(folder, run_writers(log, summarize(log)))


def test_a_run_writes_its_files(log, tmp_path):
    folder = write(log, tmp_path / "new" / "run")
    assert sorted(path.name for path in folder.iterdir()) == [
        "requests.csv",
        "run.json",
        "summary.json",
        "timeseries.csv",
    ]
    assert read_summary(folder) == read_summary(folder / "summary.json") == summarize(log)
    assert folder.stat().st_mode & 0o777 == Path(tmp_path / "new").stat().st_mode & 0o777


def test_same_log_same_bytes(log, tmp_path):
    first, second = write(log, tmp_path / "a"), write(log, tmp_path / "b")
    for path in first.iterdir():
        assert path.read_bytes() == (second / path.name).read_bytes(), path.name


def test_requests_csv_reads_back_exactly(tmp_path):
    log = random_log(300, 500)
    folder = write(log, tmp_path / "run")
    frame = pd.read_csv(folder / "requests.csv", float_precision="round_trip")
    assert tuple(frame.columns) == COLUMNS and COLUMNS[:9] == REQUEST_COLUMNS
    measured = Measured(log)
    np.testing.assert_array_equal(frame["arrival_s"], log.requests.arrival_s)
    np.testing.assert_array_equal(frame["ttft_s"], measured.ttft_s)
    np.testing.assert_array_equal(frame["e2e_s"], measured.e2e_s)
    np.testing.assert_array_equal(frame["adapter"], log.requests.adapter)
    assert frame["status"].value_counts().to_dict() == {
        name: count for name, count in summarize(log)["requests"].items() if name != "offered" and count
    }
    assert frame["arrival_s"].is_monotonic_increasing
    direct = metrics_from_requests(
        log.requests.arrival_s,
        measured.ttft_s,
        measured.e2e_s,
        log.requests.output_tokens,
        preemptions=log.requests.preemptions,
    )
    assert metrics_from_frame(frame) == direct


def test_run_json_has_the_keys_of_a_recorded_run(log, tmp_path):
    run = json.loads((write(log, tmp_path / "run") / "run.json").read_text())
    assert run["format"] == "simlora-run/1" and run["server"] == "simlora"
    assert run["initial_adapters"] == {"gpu": [], "host": [], "gpu_others": 0, "host_others": 0}
    assert run["resolved"]["num_gpu_blocks"] == 1001
    assert (run["cut_s"], run["offered"], run["completed"]) == (None, 4, 4)
    recorded = SHARED / "truth" / "vllm-0.20.2-h200" / "l8r16-n8-u30" / "run.json"
    if not recorded.exists():
        pytest.skip("compares with ../shared/truth")
    known = json.loads(recorded.read_text())
    assert set(known) - {"torch", "weights"} <= set(run)
    assert set(known["model_config"]) <= set(run["model_config"])
    assert set(known["resolved"]) - {"attention"} <= set(run["resolved"])
    assert set(known["engine"]) <= set(run["engine"])


def test_cut_run_says_where_it_was_cut(tmp_path):
    log = play([0.0, 0.1], [0, 0], [500, 500], cut_s=0.5).log
    folder = write(log, tmp_path / "run")
    assert json.loads((folder / "run.json").read_text())["cut_s"] == 0.5
    frame = pd.read_csv(folder / "requests.csv")
    assert frame["e2e_s"].isna().all() and frame["itl_max_s"].isna().all()


def test_timeseries_adds_up(log, tmp_path):
    frame = pd.read_csv(write(log, tmp_path / "run") / "timeseries.csv")
    assert tuple(frame.columns) == SERIES_COLUMNS
    width = np.diff(np.minimum(interval_edges(log.end_s, 1.0), log.end_s))
    assert (frame["arrivals_rps"] * width).sum() == pytest.approx(4)
    assert (frame["output_tps"] * width).sum() == pytest.approx(15)
    assert frame["kv_usage"].between(0, 1).all()
    assert frame["step_time_s"].isna().any()  # idle between the third and the fourth request


def test_interval_edges_cover_the_end():
    assert interval_edges(2.5, 1.0).tolist() == [0, 1, 2, 3]
    assert interval_edges(3.0, 1.0).tolist() == [0, 1, 2, 3]
    assert interval_edges(0.0, 1.0).tolist() == [0]
    assert len(interval_edges(1e9, 1.0)) <= 100_001


def test_a_failure_leaves_no_new_folder(log, tmp_path):
    writers = run_writers(log, summarize(log))
    for failure in (RuntimeError("boom"), KeyboardInterrupt()):

        def fail(path: Path, failure: BaseException = failure) -> None:
            path.write_text("half")
            raise failure

        with pytest.raises(type(failure)):
            write_folder(tmp_path / "run", writers | {"report.html": fail})
        assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_the_earlier_run_as_it_was(log, tmp_path):
    folder = write(log, tmp_path / "run")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def fail(path: Path) -> None:
        raise KeyboardInterrupt

    other = random_log(20, 20)
    with pytest.raises(KeyboardInterrupt):
        write_folder(folder, run_writers(other, summarize(other)) | {"report.html": fail})
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_new_run_replaces_an_earlier_one_and_leaves_other_files(log, tmp_path):
    folder = write_folder(
        tmp_path / "run", run_writers(log, summarize(log)) | {"report.html": text_writer(lambda: "old")}
    )
    (folder / "my-notes.txt").write_text("mine")
    other = random_log(20, 20)
    write(other, folder)
    assert read_summary(folder) == summarize(other)
    assert not (folder / "report.html").exists()  # it belonged to the earlier run
    assert (folder / "my-notes.txt").read_text() == "mine"


def test_recorded_runs_and_files_are_not_overwritten(log, tmp_path):
    (tmp_path / "recorded").mkdir()
    (tmp_path / "recorded" / "run.json").write_text('{"format": "simlora-run/1", "server": "vllm"}')
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for name, message in (
        (
            "recorded",
            "a new folder, or one that simlora run wrote: this one holds files of the same names from elsewhere",
        ),
        ("file", "a folder, not a file"),
    ):
        with pytest.raises(ConfigError) as error:
            write(log, tmp_path / name)
        assert str(error.value) == f"<arguments>: --out: {str(tmp_path / name)!r}: {message}"
    with pytest.raises(ConfigError, match="a folder that can be written"):
        write(log, tmp_path / "file" / "below")
    assert check_folder(tmp_path / "empty") == tmp_path / "empty"
    assert read_summary(write(log, tmp_path / "empty")) == summarize(log)


def test_reading_what_is_no_summary(tmp_path):
    (tmp_path / "summary.json").write_text("[1, 2]")
    for path in (tmp_path, tmp_path / "summary.json", tmp_path / "missing"):
        with pytest.raises(ConfigError) as error:
            read_summary(path)
        expected = "a folder that simlora run wrote, or the summary.json in it"
        assert str(error.value) == f"<arguments>: summary.json: {str(path)!r}: {expected}"
