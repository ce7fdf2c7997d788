"""The calibration file: strict schema, choice, scaling, digest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.latency_cases import Engine, calibrated, decode, make_latency

from simlora.errors import ConfigError
from simlora.latency.calibration import Calibration
from simlora.latency.scaling import scale_host
from simlora.latency.store import CALIBRATION_FOLDER, calibration_sha256, load_calibration
from simlora.scenario.gpu import builtin_gpu


def shipped_data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads((CALIBRATION_FOLDER / "nvidia-h200.json").read_text())
    return data


def choose(gpu: str, **flags: Any) -> Calibration:
    spec = builtin_gpu(gpu)
    assert spec is not None
    return calibrated(spec, Engine(**flags))[0]


def test_shipped_calibration_is_complete() -> None:
    calibration = load_calibration("nvidia-h200")
    assert calibration.schema_version == "simlora-calibration/1"
    assert calibration.provenance.source_runs and calibration.provenance.command
    assert calibration.provenance.host_factors["A"] == 1.0
    for name, term in calibration.terms:
        assert term.basis in ("measured", "assumed"), name
    assert calibration.terms.lora_kernels.held_out_error is not None


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("unknown",), 1),
        (("terms", "host", "parameters", "unknown"), 1.0),
        (("terms", "host", "parameters", "prepare_s"), -1.0),
        (("terms", "operators", "parameters", "gemm_flops"), 0.0),
        (("terms", "attention", "parameters", "kv_bytes_per_s"), float("nan")),
        (("schema",), "simlora-calibration/2"),
        (("terms", "copies", "basis"), "guessed"),
    ],
)
def test_wrong_values_are_refused_by_key(tmp_path: Path, path: tuple[str, ...], value: Any) -> None:
    data = shipped_data()
    part = data
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    file = tmp_path / "wrong.json"
    file.write_text(json.dumps(data))
    with pytest.raises(ConfigError, match=str(path[-1])):
        load_calibration(str(file))


def test_missing_parameter_is_refused(tmp_path: Path) -> None:
    data = shipped_data()
    del data["terms"]["host"]["parameters"]["metadata_s"]
    file = tmp_path / "short.json"
    file.write_text(json.dumps(data))
    with pytest.raises(ConfigError, match="metadata_s"):
        load_calibration(str(file))


def test_missing_file_names_the_shipped_ones() -> None:
    with pytest.raises(ConfigError, match="nvidia-h200"):
        load_calibration("nvidia-h900")


def test_broken_json_is_one_message(tmp_path: Path) -> None:
    file = tmp_path / "broken.json"
    file.write_text("{")
    with pytest.raises(ConfigError, match="JSON"):
        load_calibration(str(file))


def test_digest_is_stable_and_sees_changes() -> None:
    first, again = load_calibration("nvidia-h200"), load_calibration("nvidia-h200")
    assert calibration_sha256(first) == calibration_sha256(again)
    assert len(calibration_sha256(first)) == 64
    assert calibration_sha256(scale_host(first, 1.01)) != calibration_sha256(first)
    dumped = Calibration.model_validate(json.loads(first.model_dump_json(by_alias=True)))
    assert calibration_sha256(dumped) == calibration_sha256(first)


def test_same_gpu_and_engine_is_used_as_measured() -> None:
    chosen = choose("h200-141gb")
    assert chosen.extrapolated == ()
    assert chosen.terms == load_calibration("nvidia-h200").terms
    assert "nvidia-h200" in chosen.notes[-1]


def test_another_gpu_of_the_architecture_scales_by_the_datasheet() -> None:
    old, new = load_calibration("nvidia-h200"), choose("h100-80gb")
    ratio = 3.35 / 4.8
    assert new.terms.operators.parameters.weight_bytes_per_s == pytest.approx(
        old.terms.operators.parameters.weight_bytes_per_s * ratio
    )
    assert new.terms.operators.parameters.gemm_flops == old.terms.operators.parameters.gemm_flops
    assert new.terms.host == old.terms.host
    assert set(new.extrapolated) == {"operators", "attention"}
    assert any("0.698" in note for note in new.notes)


def test_another_architecture_is_a_marked_roofline() -> None:
    chosen = choose("a100-80gb")
    assert chosen.terms.operators.basis == "roofline"
    assert {"operators", "attention", "lora_kernels", "copies"} <= set(chosen.extrapolated)
    latency = make_latency(gpu="a100-80gb")
    timing = latency.price(decode(1))
    assert "operators" in timing.extrapolated
    weights_s = 15.0e9 / 2.039e12
    assert weights_s < timing.gpu_s < 2.0 * weights_s


def test_fewer_multiprocessors_make_lora_kernels_slower() -> None:
    assert make_latency(gpu="a100-80gb").price(decode(8, 8)).lora_s > make_latency().price(decode(8, 8)).lora_s


def test_another_engine_version_marks_its_terms() -> None:
    chosen = choose("h200-141gb", version="0.8.5")  # the engine's version counts more than the GPU
    assert chosen.id == "nvidia-h100"
    assert {"operators", "attention"} <= set(chosen.extrapolated)
    assert "host" not in chosen.extrapolated
    assert make_latency(version="0.8.5", max_loras=8).engine_start_s == pytest.approx(68.0)


def test_tensor_parallel_shards_weights_and_adds_marked_collectives() -> None:
    one, four = make_latency("llama-3.1-70b"), make_latency("llama-3.1-70b", tensor_parallel_size=4)
    assert four.price(decode(1)).base_s < 0.4 * one.price(decode(1)).base_s
    assert four.price(decode(1)).collective_s > 0.0
    assert "collectives" in four.price(decode(1)).extrapolated
    sharded = make_latency("llama-3.1-70b", tensor_parallel_size=4, fully_sharded_loras=True)
    assert sharded.price(decode(8, 4)).collective_s > four.price(decode(8, 4)).collective_s


def test_mixture_of_experts_reads_the_experts_it_reaches() -> None:
    latency = make_latency("qwen3-30b-a3b")
    assert latency.model.num_experts > 0
    one, many = latency.price(decode(1)).base_s, latency.price(decode(128)).base_s
    assert one < 0.3 * many
    assert many > 0.9 * latency.model.weight_bytes / 4.8e12


def test_host_factor_leaves_gpu_terms_alone() -> None:
    old = load_calibration("nvidia-h200")
    new = scale_host(old, 0.8)
    assert new.terms.operators == old.terms.operators
    assert new.terms.host.parameters.prepare_s == pytest.approx(0.8 * old.terms.host.parameters.prepare_s)
    assert new.terms.host.parameters.tail_s == old.terms.host.parameters.tail_s
    assert new.terms.copies.parameters.bytes_per_s == old.terms.copies.parameters.bytes_per_s
