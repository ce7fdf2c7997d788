"""Published base-model runs on GPUs without a calibration: by roofline, and after a fit to another run of the GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from accuracy_base import FITTED_TARGET, PAIR, ROOFLINE_TARGET, errors
from llmservingsim_runs import DATA, convert, run_names

from simlora.runs.recorded import read_recorded_run
from simlora.validate.fit import fit_from_runs
from simlora.validate.replay import measured_metrics


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    if not DATA.is_dir():
        pytest.skip("needs ../shared/data/llmservingsim_vllm019_validation")
    folder = tmp_path_factory.mktemp("runs")
    return {name: convert(name, folder) for name in run_names()}


def test_converted_runs_are_whole(runs: dict[str, Path]) -> None:
    assert len(runs) == 4
    for folder in runs.values():
        recorded = read_recorded_run(folder)
        assert recorded.requests is not None and len(recorded.requests) == 300
        assert recorded.requests.arrival_s[0] == 0.0 and not recorded.requests.adapter.any()
    measured = measured_metrics(read_recorded_run(runs["RTX4090_Llama-3.1-8B"]))
    assert measured["ttft_mean_s"] == pytest.approx(65.5, abs=0.1)
    assert measured["tpot_mean_s"] == pytest.approx(0.0324, abs=0.0001)


def test_roofline_predicts_the_step_time(runs: dict[str, Path]) -> None:
    for name, folder in runs.items():
        assert abs(errors(folder, None)["tpot_mean_s"]) <= ROOFLINE_TARGET, name


@pytest.mark.parametrize(("seen", "other"), [PAIR, PAIR[::-1]])
def test_a_fit_to_one_run_predicts_the_other(runs: dict[str, Path], tmp_path: Path, seen: str, other: str) -> None:
    report = fit_from_runs([runs[seen]], None, tmp_path / "fitted.json")
    assert abs(errors(runs[other], str(report.path))["tpot_mean_s"]) <= FITTED_TARGET
    assert report.held_out == {} and "no error on runs left out" in report.lines[-1]
    assert "operators" in report.calibration.extrapolated
