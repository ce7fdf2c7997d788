"""Rows, tables, JSON and plots of a validation."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from validate_runs import RUN, truth, write_run

from simlora.errors import ConfigError
from simlora.results.metrics import METRICS
from simlora.runs.recorded import read_recorded_run
from simlora.validate.compare import validate
from simlora.validate.plots import preemptions_so_far, write_plots
from simlora.validate.replay import replays
from simlora.validate.rows import Row, write_json
from simlora.validate.scenario_of_run import ReplayOptions
from simlora.validate.table import error_text, measurement_table, run_table

KEYS = ("run", "metric", "measured", "simulated", "error", "simulated_step_x095", "simulated_step_x105")


def row(measured: float | None, simulated: float | None, shorter: float = 0.9, longer: float = 1.1) -> Row:
    return Row("run", "ttft_mean_s", measured, simulated, shorter, longer)


def test_errors() -> None:
    assert row(2.0, 3.0).error == 0.5
    assert row(0.0, 0.0).error == 0
    assert row(0.0, 1.0).error is None
    assert row(None, 1.0).error is None
    assert row(1.0, None).error is None


def test_the_band_of_step_times() -> None:
    assert row(1.0, 1.2).in_band
    assert row(1.0, 1.2, shorter=1.1, longer=0.9).in_band, "throughput falls as steps get longer"
    assert not row(2.0, 1.0).in_band
    assert not row(None, 1.0).in_band
    assert error_text(row(1.0, 1.25)) == "+25.0 % [-10, +10] ~"
    assert error_text(row(2.0, 1.0)) == "-50.0 % [-55, -45]"
    assert error_text(row(None, 1.0)) == "-"


def test_json(tmp_path: Path) -> None:
    write_run(tmp_path / "run", prefill="prompt_tokens,rank,repeat,ttft_s\n128,16,1,0.02\n")
    report = validate([tmp_path / "run"])
    path = write_json(report.rows, tmp_path / "deep" / "report.json")
    rows = json.loads(path.read_text())
    assert [entry["metric"] for entry in rows] == [*METRICS, "prefill_ttft_s"]
    assert tuple(rows[0]) == KEYS
    assert rows[-1]["prompt_tokens"] == 128 and rows[-1]["rank"] == 16
    for entry in rows:
        if entry["error"] is not None:
            assert entry["error"] == pytest.approx(entry["simulated"] / entry["measured"] - 1)
    assert [item.name for item in path.parent.iterdir()] == ["report.json"]


def test_json_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--json"):
        write_json([], tmp_path / "file" / "report.json")


@pytest.mark.parametrize("width", [80, 200])
def test_tables(tmp_path: Path, width: int) -> None:
    write_run(tmp_path / "run", {"initial_adapters": None}, load="rank,phase,repeat,ttft_s\n16,cold,0,0.2\n")
    report = validate([tmp_path / "run"])
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(run_table(report.of_requests()))
    console.print(measurement_table(report.of_measurements()))
    text = console.export_text()
    assert "(cold)" in text and "(all-host)" in text
    assert "Adapter load" in text and "cold" in text and "200.00" in text
    assert "…" not in text


def test_two_runs_of_one_name(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    write_run(tmp_path / "b")
    with pytest.raises(ConfigError, match="another name"):
        validate([tmp_path])


def test_plots(tmp_path: Path) -> None:
    steps = "t_s,running,waiting,kv_usage,preempted\n0.1,1,0,0.1,0\n0.2,2,1,0.2,1\n"
    write_run(tmp_path / "run", {"name": "a/b c"}, steps=steps)
    write_run(tmp_path / "micro", {"name": "m"}, None, prefill="prompt_tokens,rank,repeat,ttft_s\n128,0,1,0.02\n")
    paths = write_plots([tmp_path], tmp_path / "plots")
    assert [path.name for path in paths] == ["a-b-c-cdf.png", "a-b-c-time.png"]
    assert all(path.stat().st_size > 10_000 for path in paths)


def test_preemptions_are_drawn_when_they_happen(tmp_path: Path) -> None:
    """Four requests that outgrow a small KV cache together."""
    resolved = {**RUN["resolved"], "num_gpu_blocks": 60}
    rows = tuple(f"{0.01 * index},0,0,200,200,0.1,3.0,0.02,0.01" for index in range(4))
    engine = {"enable_lora": False}
    write_run(tmp_path / "run", {"resolved": resolved, "engine": engine, "initial_adapters": None}, rows)
    log = next(replays(read_recorded_run(tmp_path / "run"), ReplayOptions())).simulate()
    when, total = preemptions_so_far(log)
    assert total[-1] == sum(replica.preemptions for replica in log.replicas) > 0
    assert when[0] == 0.0 and when[-1] == log.end_s and (np.diff(when) >= 0).all() and (np.diff(total) >= 0).all()
    assert (np.diff(total) > 0).sum() == len(when) - 2


def test_measured_runs() -> None:
    report = validate([truth()])
    by_run: dict[str, set[str]] = {}
    for entry in report.rows:
        by_run.setdefault(entry.run, set()).add(entry.metric)
    assert by_run["kv8-long4"] == set(METRICS)
    assert by_run["l8r16-micro"] == {"decode_itl_s", "prefill_ttft_s", "load_ttft_s"}
    assert len(report.of_requests()) == 10 * len([run for run, metrics in by_run.items() if "tpot_mean_s" in metrics])
    for entry in report.rows:
        assert entry.measured is not None and entry.simulated is not None
        assert entry.simulated_step_x095 is not None and entry.simulated_step_x105 is not None
    loads = {
        tuple(e.key.values()): e.measured for e in report.rows if e.run == "l8r16-micro" and e.metric == "load_ttft_s"
    }
    assert loads[(16, "warm")] == pytest.approx(0.046, abs=0.001)
