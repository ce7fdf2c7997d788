"""`simlora compare`, and `simlora run` on each kind of engine, as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_cli import RUN_FILES, SUMMARY_KEYS, simlora

from simlora.plan.variants import DEDICATED
from simlora.scenario.engines import ENGINES

KINDS = (*ENGINES, DEDICATED)

ENGINE = "{max_loras: 4, max_lora_rank: 16, max_cpu_loras: 12, max_num_seqs: 64}"
FEW = f"""\
name: few
model: llama-2-7b
gpu: h200-141gb
engine: {ENGINE}
adapters: {{count: 12, ranks: {{16: 1.0}}, popularity: {{kind: zipf, alpha: 1.0}}}}
workload: {{arrivals: {{kind: poisson, rate_rps: 4}}, num_requests: 40}}
"""
REPORT = {"comparison.md", "comparison.html", "comparison.json"}


@pytest.fixture
def few(tmp_path: Path) -> Path:
    path = tmp_path / "few.yaml"
    path.write_text(FEW)
    return path


def test_all_engines_twice_give_the_same_bytes(few: Path, tmp_path: Path) -> None:
    texts = []
    for name in ("a", "b"):
        result = simlora(
            "compare", few, "--engines", ",".join(KINDS), "--check",
            "--report", tmp_path / name, "--json", tmp_path / f"{name}.json",
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
        assert {path.name for path in (tmp_path / name).iterdir()} == REPORT
        files = [tmp_path / f"{name}.json", *(tmp_path / name / file for file in sorted(REPORT))]
        texts.append([file.read_bytes() for file in files])
    assert texts[0] == texts[1]
    found = json.loads(texts[0][0])
    assert list(found) == list(KINDS)
    for summary in found.values():
        assert set(summary) >= SUMMARY_KEYS and summary["requests"]["offered"] == 40
    assert "…" not in result.stdout and "cheapest" in result.stdout


def test_an_engine_that_cannot_serve_says_why_and_the_others_are_played(few: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    result = simlora(
        "compare", few, "--engines", "punica,vllm", "--set", "adapters.ranks={8: 0.5, 16: 0.5}", "--json", out
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(out.read_text())
    assert list(found) == ["punica", "vllm"] and list(found["punica"]) == ["unsupported"]
    assert "rank" in found["punica"]["unsupported"] and found["vllm"]["requests"]["completed"] == 40
    assert "punica cannot serve this" in result.stdout


BAD = [
    (("--engines", "vllm,tgi"), "'tgi'"),
    (("--engines", ""), "--engines"),
    (("--engines", "punica", "--set", "adapters.ranks={8: 0.5, 16: 0.5}"), "none of them serves this"),
    (("--engines", "dedicated", "--set", "adapters.count=0"), "cluster.topology"),
    (("--engines", "vllm", "--report", "few.yaml"), "--report"),
    (("--engines", "vllm", "--json", "."), "--json"),
    (("--engines", "vllm", "--json", "few.yaml/out.json"), "--json"),
    (("--engines", "vllm", "--set", "engine.kind=slora"), "engine.max_loras"),
]


@pytest.mark.parametrize(("args", "named"), BAD, ids=[" ".join(args) for args, _ in BAD])
def test_bad_input_ends_with_2_one_message_and_no_file(
    few: Path, tmp_path: Path, args: tuple[str, ...], named: str
) -> None:
    result = simlora("compare", "few.yaml", *args, cwd=tmp_path)
    assert result.returncode == 2, result.stdout + result.stderr
    assert named in result.stderr and "Traceback" not in result.stderr and not result.stdout
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert few.read_text() == FEW and [path.name for path in tmp_path.iterdir()] == ["few.yaml"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of two engines."""
    folder = tmp_path_factory.mktemp("runs")
    for kind in ("slora", "lorax"):
        (folder / f"{kind}.yaml").write_text(
            FEW.replace("name: few", f"name: {kind}").replace(ENGINE, f"{{kind: {kind}}}")
        )
        result = simlora("run", folder / f"{kind}.yaml", "--check", "--out", folder / kind)
        assert result.returncode == 0, result.stderr
        assert "decision:" in result.stdout and {path.name for path in (folder / kind).iterdir()} == RUN_FILES
    return folder


def test_a_run_of_another_engine_validates_without_error(runs: Path, tmp_path: Path) -> None:
    result = simlora("validate", runs / "slora", runs / "lorax", "--json", tmp_path / "errors.json")
    assert result.returncode == 0, result.stderr
    errors = [row["error"] for row in json.loads((tmp_path / "errors.json").read_text())]
    assert len(errors) == 20 and all(abs(error or 0.0) < 1e-9 for error in errors)


def test_runs_of_different_engines_can_be_compared(runs: Path) -> None:
    result = simlora("diff", runs / "slora", runs / "lorax")
    assert result.returncode == 0, result.stderr
    assert "engine.kind" in result.stdout and "lorax" in result.stdout


def test_memory_of_another_engine(runs: Path) -> None:
    result = simlora("memory", runs / "slora.yaml")
    assert result.returncode == 0, result.stderr
    assert "unified pool" in result.stdout and "binds:" in result.stdout
    refused = simlora("memory", runs / "slora.yaml", "--set", "model=llama-3.1-70b")
    assert refused.returncode == 2 and "weights bind" in refused.stderr and "Traceback" not in refused.stderr


def test_dedicated_deployments_that_sleep(few: Path, tmp_path: Path) -> None:
    change = ("--set", "cluster.topology=dedicated", "--set", "cluster.dedicated.scale_to_zero_s=1")
    result = simlora("run", few, *change, "--check", "--out", tmp_path / "out")
    assert result.returncode == 0, result.stderr
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["cost"]["gpus"] == 12 > summary["cost"]["gpus_mean"]
    assert "scale_to_zero" not in result.stdout and "max_loras" not in result.stdout
