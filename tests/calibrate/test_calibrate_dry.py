"""Every measurement's code on the CPU with tiny shapes: times mean nothing, rows and files must be right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
pytest.importorskip("safetensors")

from simlora.calibrate import lora_kernels  # noqa: E402
from simlora.calibrate.__main__ import main  # noqa: E402
from simlora.calibrate.bench import Bench, dry_bench  # noqa: E402
from simlora.calibrate.campaign import fit_only, run_calibration  # noqa: E402
from simlora.calibrate.fitting.samples import check_row  # noqa: E402
from simlora.calibrate.grid import TINY, LoraSet, points  # noqa: E402
from simlora.calibrate.measure_collectives import in_processes  # noqa: E402
from simlora.calibrate.measure_lora import lora_steps  # noqa: E402
from simlora.calibrate.plan import build_plan  # noqa: E402
from simlora.calibrate.result import CALIBRATION, PLOTS, REPORT  # noqa: E402
from simlora.calibrate.samples import PROGRESS, PROVENANCE, SAMPLES, CampaignFolder  # noqa: E402

from simlora.latency.store import load_calibration  # noqa: E402

if not triton.knobs.runtime.interpret:
    pytest.skip("needs TRITON_INTERPRET=1: Triton has no GPU here", allow_module_level=True)

OPS = {
    "python_loop", "python_lookup", "launch", "dense_step", "gemm", "norm", "rope", "silu_mul", "sampler",
    "attention_decode", "attention_prefill", "lora_step", "h2d", "adapter_load", "adapter_load_issue", "disk_read",
    "adapter_parse", "adapter_pack", "adapter_from_disk", "all_reduce", "all_gather", "torch_view", "torch_call",
    "read_back",
}  # fmt: skip


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two calls: the first with next to no budget."""
    folder = tmp_path_factory.mktemp("campaign")
    ticks = iter(range(10**6))
    first = run_calibration(folder, budget_s=8.0, dry=True, clock=lambda: float(next(ticks)))
    assert not first.outcome.complete and first.outcome.finished >= 1
    lines: list[str] = []
    second = run_calibration(folder, dry=True, report=lines.append, clock=lambda: 0.0)
    assert second.outcome.complete and not second.outcome.failed
    assert len(lines) + first.outcome.finished == len(build_plan(TINY))
    return folder


def test_every_operation_is_sampled(campaign: Path) -> None:
    rows = [json.loads(line) for line in (campaign / SAMPLES).read_text().splitlines()]
    assert {row["op"] for row in rows} == OPS
    for row in rows:
        check_row(row)
    machines = json.loads((campaign / PROVENANCE).read_text())
    assert {row["provenance"] for row in rows} == {machine["id"] for machine in machines} and len(machines) == 1
    assert {"gpu", "driver", "host_cpu", "versions", "date", "command", "l2_bytes"} <= set(machines[0])


def test_kernels_that_are_not_installed_are_skipped_with_a_reason(campaign: Path) -> None:
    skipped = {done.item: done.reason for done in CampaignFolder(campaign).done if done.status == "skipped"}
    assert all("cannot be imported" in reason for reason in skipped.values())
    assert {item.rpartition("/")[2] for item in skipped} <= {"vllm", "sglang"}


def test_results_are_written_and_say_that_the_run_was_dry(campaign: Path) -> None:
    calibration = load_calibration(str(campaign / CALIBRATION))
    assert any("dry run" in note for note in calibration.notes) and any("Python loop" in n for n in calibration.notes)
    assert calibration.terms.operators.basis == "measured"
    report = json.loads((campaign / REPORT).read_text())
    assert {"operators", "attention"} <= {term["term"] for term in report["terms"]}
    assert (campaign / PLOTS).read_bytes()[:4] == b"\x89PNG"
    names = {path.name for path in campaign.iterdir()}
    assert names == {SAMPLES, PROGRESS, PROVENANCE, CALIBRATION, REPORT, PLOTS}


def test_samples_can_be_fitted_again_without_measuring(campaign: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fit_only(campaign).calibration == load_calibration(str(campaign / CALIBRATION))
    assert main(["--out", str(campaign), "--fit-only", "--name", "another"]) == 0
    assert "(another)" in capsys.readouterr().out and load_calibration(str(campaign / CALIBRATION)).id == "another"


@pytest.mark.parametrize("family", ["padded", "bgmv"])
def test_the_slower_families(tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lora_kernels, "ALL_LINEAR", ("o_proj",))  # the interpreter is slow
    chosen = LoraSet("tiny", 1, 1, 16, (8,), points((1, 1)))
    rows = list(lora_steps(dry_bench(tmp_path), (family,), chosen))
    assert [row["op"] for row in rows] == (["lora_step", "lora_zero"] if family == "padded" else ["lora_step"])
    assert rows[0]["sum_of_ranks"] == 8 and rows[0]["slot_rank"] == 16 and rows[0]["layers"] == 2


def test_a_set_too_large_for_the_memory_is_skipped(tmp_path: Path) -> None:
    from simlora.calibrate.session import SkipItemError

    bench = dry_bench(tmp_path)
    small = Bench(bench.device, bench.timer, bench.dtype, 2**20, bench.l2_bytes, tmp_path)
    with pytest.raises(SkipItemError, match="GiB"):
        list(lora_steps(small, ("simlora",), LoraSet("llama-3.1-8b", 1, 1, 16, (8,), points((1, 1)))))


def test_collectives_run_in_processes_of_their_own(tmp_path: Path) -> None:
    rows = list(in_processes(tmp_path, 2, (2**10,), "cpu"))
    assert [(row["op"], row["world"], row["bytes"]) for row in rows] == [
        ("all_reduce", 2, 1024),
        ("all_gather", 2, 1024),
    ]
    assert not list(tmp_path.iterdir())


def test_a_failed_process_is_reported_and_the_others_ended(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"process 0: .*no-such-device"):
        list(in_processes(tmp_path, 1, (2**10,), "no-such-device"))
