"""Whether a machine can be measured, and which GPU of the catalogue it has."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from simlora.calibrate.__main__ import main
from simlora.calibrate.base import base_calibration, catalogue_gpu, measured_gpu
from simlora.calibrate.campaign import run_calibration
from simlora.calibrate.device import cpu_facts, require_gpu

from simlora.errors import ConfigError, SimloraError
from simlora.latency.store import shipped

MIB = 2**20
HAS_TORCH = importlib.util.find_spec("torch") is not None


def _without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_no_gpu_is_one_message_that_names_the_shipped_calibrations(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _without_gpu(monkeypatch)
    with pytest.raises(SimloraError) as raised:
        run_calibration(tmp_path / "out")
    message = str(raised.value)
    assert "torch finds no CUDA GPU" in message and "\n" not in message
    assert all(name in message for name in shipped()) and "nvidia-h200" in message
    assert not (tmp_path / "out").exists()


def test_no_torch_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else real(name))
    with pytest.raises(SimloraError, match=r"torch is not installed \(pip install 'simlora\[gpu\]'\).*nvidia-h200"):
        require_gpu()


def test_an_old_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index=0: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index=0: "Tesla T4")
    with pytest.raises(SimloraError, match=r"8\.0 or later: Tesla T4 has compute capability 7\.5"):
        require_gpu()


def test_the_command_line_ends_with_2(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys) -> None:
    _without_gpu(monkeypatch)
    assert main(["--out", str(tmp_path / "out")]) == 2
    assert main(["--out", str(tmp_path / "out"), "--budget", "soon"]) == 2
    assert main(["--out", str(tmp_path / "out"), "--only", "copies,tea"]) == 2
    assert main(["--out", str(tmp_path / "out"), "--fit-only"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert (
        len(errors) == 4 and "--budget: 'soon'" in errors[1] and "--only: 'tea'" in errors[2] and "samples" in errors[3]
    )


def test_out_must_not_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="a folder"):
        run_calibration(tmp_path / "file", dry=True)


@pytest.mark.parametrize(
    ("driver_name", "sm_count", "memory_mib", "name"),
    [
        ("NVIDIA H200", 132, 143_771, "h200-141gb"),
        ("NVIDIA H100 80GB HBM3", 132, 81_559, "h100-80gb"),
        ("NVIDIA A100-SXM4-80GB", 108, 81_920, "a100-80gb"),
        ("NVIDIA A100-SXM4-40GB", 108, 40_960, "a100-40gb"),
        ("NVIDIA L40S", 142, 46_068, "l40s"),
        ("NVIDIA GeForce RTX 4090", 128, 24_564, "rtx-4090"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 188, 97_887, "rtx-pro-6000"),
    ],
)
def test_driver_names_lead_to_the_catalogue(driver_name: str, sm_count: int, memory_mib: int, name: str) -> None:
    facts = {"gpu": driver_name, "sm_count": sm_count, "memory_bytes": memory_mib * MIB}
    spec = catalogue_gpu(facts)
    assert spec is not None and spec.name == name


def test_a_gpu_of_another_cut_is_not_taken_for_the_catalogues() -> None:
    facts = {"gpu": "NVIDIA H100 PCIe", "sm_count": 114, "memory_bytes": 81_559 * MIB, "capability": "9.0"}
    assert catalogue_gpu(facts) is None
    norms = [{"op": "norm", "bytes": 1.8e9, "p50": 1e-3}]
    products = [{"op": "gemm", "inputs": 8192, "outputs": 8192, "tokens": 8192, "p50": 2.0 * 8192**3 / 6e14}]
    spec, note = measured_gpu(facts, [*norms, *products])
    assert spec.architecture == "hopper" and spec.hbm_bytes_per_s == pytest.approx(2e12)
    assert spec.bf16_flops == pytest.approx(8e14) and "estimates" in note


def test_a_base_is_found_for_any_gpu() -> None:
    facts = {"gpu": "NVIDIA A100-SXM4-80GB", "sm_count": 108, "memory_bytes": 81_920 * MIB}
    spec = catalogue_gpu(facts)
    assert spec is not None
    base = base_calibration(spec)
    assert base.engine.kind == "vllm" and base.gpu.name == "a100-80gb" and "operators" in base.extrapolated


@pytest.mark.skipif(not HAS_TORCH, reason="needs torch")
def test_facts_name_machine_and_software() -> None:
    facts = cpu_facts(["/x/calibrate/__main__.py", "--out", "here"])
    assert facts.command == "python -m simlora.calibrate --out here"
    assert "torch" in facts.versions and facts.host_cpu and facts.host_cores >= 1
    assert facts.id == cpu_facts().id and "torch" in facts.id
