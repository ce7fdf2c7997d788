"""Fitting engine terms to recorded runs: recovers what a run was made with, keeps what runs do not show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simlora.errors import ConfigError
from simlora.latency.store import load_calibration
from simlora.results.files import run_writers, write_folder
from simlora.results.summary import summarize
from simlora.runs.recorded import RecordedRun, read_recorded_run
from simlora.scenario.load import scenario_from_dict
from simlora.sim.build import build_inputs
from simlora.sim.simulate import simulate
from simlora.validate.fit import fit_from_runs
from simlora.validate.fit_errors import LARGEST, FitError
from simlora.validate.fit_file import fit_start, ranges_of, write_calibration
from simlora.validate.fit_groups import (
    EAGER,
    LORA_KERNELS,
    MEMORY,
    PREPARE,
    TYPICAL,
    Group,
    apply,
    groups_of,
    with_parameters,
    with_terms,
)

RECORDED = Path(__file__).parents[1] / "recorded" / "vllm-0.20.2-h200"
SMALL: dict[str, Any] = {
    "name": "own",
    "seed": 5,
    "model": "llama-3.1-8b",
    "gpu": "h200-141gb",
    "engine": {"max_loras": 4, "max_cpu_loras": 8, "max_num_seqs": 64, "enforce_eager": True},
    "adapters": {"count": 6, "preload": True},
    "workload": {"arrivals": {"kind": "poisson", "rate_rps": 2}, "duration_s": 8},
}


def record(folder: Path, calibration: str, changes: dict[str, Any] | None = None) -> Path:
    """A run of our own simulator, as a recording."""
    log = simulate(build_inputs(scenario_from_dict({**SMALL, "calibration": calibration, **(changes or {})})))
    write_folder(folder, run_writers(log, summarize(log)))
    return folder


def slower(tmp_path: Path, factor: float) -> str:
    """The shipped calibration with a host that launches kernels `factor` times as slowly."""
    base = load_calibration("nvidia-h200")
    host = base.terms.host.parameters
    names = [name for _, name, _ in EAGER.parameters]
    changed = with_parameters(base, {"host": {name: factor * getattr(host, name) for name in names}})
    write_calibration(changed.model_copy(update={"id": "slower"}), tmp_path / "slower.json")
    return str(tmp_path / "slower.json")


def read(folder: Path) -> RecordedRun:
    return read_recorded_run(folder)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("fit")
    calibration = slower(folder, 1.5)
    record(folder / "one", calibration)
    record(folder / "two", calibration, {"seed": 6, "name": "other"})
    runs, out = [folder / "one", folder / "two"], folder / "mine.json"
    return fit_from_runs(runs, "nvidia-h200", out, held_out_folder=folder / "without")


def test_the_factor_of_a_slower_host_is_found(fitted: Any) -> None:
    factors = {name: factor for name, factor, shown in fitted.groups if shown}
    assert factors[EAGER.name] == pytest.approx(1.5, rel=0.12)
    assert max(abs(error.error) for error in fitted.after if error.metric.startswith("tpot")) < 0.05
    assert max(abs(error.error) for error in fitted.before if error.metric.startswith("tpot")) > 0.2


def test_kernel_terms_stay(fitted: Any) -> None:
    base = load_calibration("nvidia-h200")
    assert fitted.calibration.terms.operators == base.terms.operators
    assert fitted.calibration.terms.lora_kernels == base.terms.lora_kernels


def test_what_runs_do_not_show_stays(fitted: Any) -> None:
    kept = {name for name, _, shown in fitted.groups if not shown}
    assert "host: launching graph pieces" in kept
    base = load_calibration("nvidia-h200")
    assert fitted.calibration.terms.host.parameters.piecewise_layer_s == base.terms.host.parameters.piecewise_layer_s


def test_the_file_says_where_it_comes_from(fitted: Any) -> None:
    again = load_calibration(str(fitted.path))
    assert again.id == "mine" and again.provenance.source_runs == ("own", "other")
    assert again.terms.host.basis == "measured"
    assert again.terms.host.measured["num_hidden_layers"] == (32.0, 32.0)
    assert set(fitted.held_out) == {"own", "other"}
    assert again.terms.host.held_out_error == pytest.approx(max(fitted.held_out.values()), abs=1e-4)
    text = "\n".join(fitted.lines)
    assert "fitted without own" in text and "x1." in text


def test_the_other_run_is_predicted(fitted: Any) -> None:
    assert max(fitted.held_out.values()) < 0.06


def test_fits_without_one_run_say_so(fitted: Any) -> None:
    folder = fitted.path.parent / "without"
    assert {path.name for path in folder.iterdir()} == {"without-own.json", "without-other.json"}
    without = load_calibration(str(folder / "without-own.json"))
    assert without.provenance.source_runs == ("other",)
    eager_s = [item.terms.host.parameters.eager_lora_layer_s for item in (without, fitted.calibration)]
    assert eager_s[0] == pytest.approx(eager_s[1], rel=0.2) and eager_s[0] != eager_s[1]


def test_a_fit_anew_owes_nothing_to_the_engine_terms_of_its_base(tmp_path: Path) -> None:
    one = record(tmp_path / "one", "nvidia-h200")
    reports = [
        fit_from_runs([one], base, tmp_path / "fitted.json", anew=True)
        for base in ("nvidia-h200", slower(tmp_path, 3.0))
    ]
    assert reports[0].after == reports[1].after
    assert max(abs(error.error) for error in reports[0].after if error.metric.startswith("tpot")) < 0.05
    assert reports[0].calibration.terms.host.parameters.piecewise_layer_s == TYPICAL["host"]["piecewise_layer_s"]


def test_single_measurements_tell_parameters_apart() -> None:
    base, micro = load_calibration("nvidia-h200"), read(RECORDED / "l8r16-micro")
    named = {group.name: group for group in groups_of(base, [micro])}
    assert named["host: launching one by one, LoRA in use"].parameters == (("host", "eager_lora_layer_s", 1),)
    assert named["kernels: lora_kernels, shrink_s"].width == base.terms.lora_kernels.held_out_error
    assert named["kernels: operators, gemm_flops"].parameters == (("operators", "gemm_flops", -1),)
    assert named["loads: rate of the disk"].parameters == (("copies", "disk_bytes_per_s", -1),)
    plain = {group.name for group in groups_of(base, [read(RECORDED / "base8b-micro")])}
    assert "kernels: operators, layer_s" in plain and not any("lora" in name.lower() for name in plain)


def test_factors_of_one_parameter_multiply() -> None:
    base = load_calibration("nvidia-h200")
    own = Group("", 0.3, (("host", "eager_lora_layer_s", 1),))
    moved, old = apply(base, (EAGER, own), (0.1, 0.2)).terms.host.parameters, base.terms.host.parameters
    assert moved.eager_lora_layer_s == pytest.approx(1.34986 * old.eager_lora_layer_s, rel=1e-4)
    assert moved.eager_layer_s == pytest.approx(1.10517 * old.eager_layer_s, rel=1e-4)


def test_groups_follow_runs_and_bases(tmp_path: Path) -> None:
    base = load_calibration("nvidia-h200")
    lora = read(record(tmp_path / "lora", "nvidia-h200"))
    plain = read(record(tmp_path / "plain", "nvidia-h200", {"engine": {"enable_lora": False}, "adapters": {}}))
    names = {group.name for group in groups_of(base, [lora])}
    assert "loads: host memory to slot" in names and MEMORY.name not in names
    assert "loads: host memory to slot" not in {group.name for group in groups_of(base, [plain])}
    rooflined = base.model_copy(
        update={
            "terms": base.terms.model_copy(
                update={
                    name: getattr(base.terms, name).model_copy(update={"basis": "roofline"})
                    for name in ("operators", "attention")
                }
            )
        }
    )
    assert MEMORY in groups_of(rooflined, [plain])


def test_lora_kernels_of_another_gpu_may_move(tmp_path: Path) -> None:
    base = load_calibration("nvidia-h200")
    lora = read(record(tmp_path / "lora", "nvidia-h200"))
    plain = read(record(tmp_path / "plain", "nvidia-h200", {"engine": {"enable_lora": False}, "adapters": {}}))
    scaled = with_terms(base, {"lora_kernels": {"basis": "scaled"}})
    assert LORA_KERNELS not in groups_of(base, [lora])
    assert LORA_KERNELS in groups_of(scaled, [lora]) and LORA_KERNELS not in groups_of(scaled, [plain])
    old, new = (
        scaled.terms.lora_kernels.parameters,
        apply(scaled, (LORA_KERNELS,), (0.5,)).terms.lora_kernels.parameters,
    )
    assert new.expand_s == pytest.approx(1.6487 * old.expand_s, rel=1e-4)
    assert new.row_bytes_per_s is None, "a rate that the calibration does not have stays away"
    with_rows = with_parameters(scaled, {"lora_kernels": {"row_bytes_per_s": 1e12}})
    slower = apply(with_rows, (LORA_KERNELS,), (0.5,)).terms.lora_kernels.parameters
    assert slower.row_bytes_per_s == pytest.approx(1e12 / 1.6487, rel=1e-4)


def test_a_residual_from_afar_still_says_which_way() -> None:
    """A flat one would leave the fit where it starts, however wrong that is."""
    residuals = [FitError("run", "tpot_mean_s", 1.0, factor, 0.03).residual for factor in (1.1, 1.3, 1.5, 3.0, 30.0)]
    assert residuals == sorted(set(residuals))
    assert residuals[0] < LARGEST < residuals[1] and residuals[-1] < 5 * LARGEST
    lower = FitError("run", "tpot_mean_s", 1.0, 1 / 1.5, 0.03).residual
    assert lower == pytest.approx(-residuals[2]) and FitError("run", "x", 1.0, 0.0, 0.03).residual < -LARGEST


def test_rates_move_against_times() -> None:
    base = load_calibration("nvidia-h200")
    moved = apply(base, (PREPARE, MEMORY), (0.1, 0.1))
    assert moved.terms.host.parameters.prepare_s > base.terms.host.parameters.prepare_s
    assert moved.terms.attention.parameters.kv_bytes_per_s < base.terms.attention.parameters.kv_bytes_per_s
    assert moved.terms.host.parameters.launch_s == base.terms.host.parameters.launch_s


def test_start_up_time_by_slots(tmp_path: Path) -> None:
    runs = []
    for slots, start_s in ((4, 100.0), (16, 160.0), (32, 240.0)):
        folder = record(tmp_path / str(slots), "nvidia-h200", {"engine": {"max_loras": slots}})
        data = json.loads((folder / "run.json").read_text())
        (folder / "run.json").write_text(json.dumps({**data, "start_s": start_s}))
        runs.append(read(folder))
    term = fit_start(load_calibration("nvidia-h200"), runs).terms.engine_start
    assert term.parameters.slot_s == pytest.approx(5.0, abs=1.0)
    assert term.measured["max_loras"] == (4.0, 32.0)


def test_ranges_are_those_of_the_runs(tmp_path: Path) -> None:
    ranges = ranges_of([read(record(tmp_path / "run", "nvidia-h200"))])
    assert ranges["max_loras"] == (4.0, 4.0)
    assert 1 < ranges["requests"][1] <= 64


def test_runs_of_several_servers_are_refused(tmp_path: Path) -> None:
    record(tmp_path / "one", "nvidia-h200")
    record(tmp_path / "two", "nvidia-h200", {"gpu": "h100-80gb", "name": "other"})
    with pytest.raises(ConfigError, match="one fit, one server"):
        fit_from_runs([tmp_path / "one", tmp_path / "two"], None, tmp_path / "out.json")
    data = json.loads((tmp_path / "two" / "run.json").read_text())
    of_one = {**data, "gpu": {"name": "h200-141gb", "hbm_gb_per_s": 4000.0}}
    (tmp_path / "two" / "run.json").write_text(json.dumps(of_one))
    with pytest.raises(ConfigError, match="one fit, one server"):
        fit_from_runs([tmp_path / "one", tmp_path / "two"], None, tmp_path / "out.json")
    assert not (tmp_path / "out.json").exists()
