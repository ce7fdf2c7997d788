"""The command line as a user meets it: in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCENARIOS = ROOT / "scenarios"
RUN_FILES = {"summary.json", "requests.csv", "run.json", "timeseries.csv", "report.html"}
SUMMARY_KEYS = {
    "scenario", "seed", "simlora_version", "calibration", "requests", "duration_s", "request_throughput_rps",
    "output_throughput_tps", "total_throughput_tps", "ttft_s", "tpot_s", "itl_s", "e2e_s", "queue_s", "slo", "adapters",
    "transfers", "ranks", "memory", "gpu", "cost", "bottleneck", "health", "replicas",
}  # fmt: skip
SMALL = """\
name: small
model: llama-3.1-8b
gpu: h200-141gb
engine: {max_loras: 4, max_lora_rank: 16, max_cpu_loras: 8}
adapters: {count: 12, ranks: {8: 0.5, 16: 0.5}, popularity: {kind: zipf, alpha: 1.0}}
workload: {arrivals: {kind: poisson, rate_rps: 6}, num_requests: 80}
"""


def simlora(*args: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "simlora.cli", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=os.environ | {"COLUMNS": "100"})


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def test_run_writes_the_contracted_files(small: Path, tmp_path: Path) -> None:
    result = simlora("run", small, "--out", tmp_path / "out")
    assert result.returncode == 0, result.stderr
    assert {p.name for p in (tmp_path / "out").iterdir()} == RUN_FILES
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert set(summary) >= SUMMARY_KEYS
    assert summary["requests"] == {"offered": 80, "completed": 80, "rejected": 0, "unfinished": 0}
    assert abs(sum(summary["bottleneck"]["shares"].values()) - 1.0) < 1e-9
    assert "decision:" in result.stdout


def test_same_seed_gives_the_same_bytes_and_another_seed_does_not(small: Path, tmp_path: Path) -> None:
    texts = []
    for name, seed in (("a", "3"), ("b", "3"), ("c", "4")):
        assert simlora("run", small, "--seed", seed, "--no-decision", "--out", tmp_path / name).returncode == 0
        texts.append((tmp_path / name / "summary.json").read_bytes())
    assert texts[0] == texts[1] != texts[2]


def test_step_by_step_gives_the_same_requests(small: Path, tmp_path: Path) -> None:
    for name, flags in (("fast", ()), ("slow", ("--step-by-step", "--check"))):
        assert simlora("run", small, "--no-decision", "--out", tmp_path / name, *flags).returncode == 0
    first, second = (
        [line.split(",")[:7] for line in (tmp_path / name / "requests.csv").read_text().splitlines()]
        for name in ("fast", "slow")
    )
    assert first == second


def test_perfetto_trace_on_request(small: Path, tmp_path: Path) -> None:
    assert simlora("run", small, "--no-decision", "--perfetto", "--out", tmp_path / "out").returncode == 0
    assert (tmp_path / "out" / "trace.json.gz").stat().st_size > 1000


def test_from_vllm_args() -> None:
    flags = "serve meta-llama/Llama-3.1-8B-Instruct --enable-lora --max-loras 8 --max-lora-rank 32"
    result = simlora("run", "--from-vllm-args", flags, "--set", "workload.num_requests=40", "--no-decision")
    assert result.returncode == 0, result.stderr
    assert "llama-3.1-8b" in result.stdout


def test_memory_shows_the_ledger_and_flags_an_oversized_rank(small: Path) -> None:
    result = simlora("memory", small, "--set", "engine.max_lora_rank=128")
    assert result.returncode == 0, result.stderr
    assert "LoRA slots" in result.stdout and "KV cache" in result.stdout
    assert "KV tokens" in result.stdout and "ms to a decode step" in " ".join(result.stdout.split())


def test_memory_refuses_what_cannot_fit(small: Path) -> None:
    result = simlora(
        "memory",
        small,
        "--set",
        "engine.max_loras=4000",
        "--set",
        "engine.max_cpu_loras=4000",
        "--set",
        "storage.host_gib=100000",
    )
    assert result.returncode == 2
    assert "largest max_loras that fits" in result.stderr


def test_trace_describes_and_converts(tmp_path: Path) -> None:
    result = simlora("trace", SCENARIOS / "traces" / "sample.csv", "--convert", tmp_path / "plain.csv")
    assert result.returncode == 0, result.stderr
    assert "300" in result.stdout
    again = simlora("trace", tmp_path / "plain.csv")
    assert again.returncode == 0 and "300" in again.stdout


def test_diff_names_what_changed(small: Path, tmp_path: Path) -> None:
    assert simlora("run", small, "--no-decision", "--out", tmp_path / "a").returncode == 0
    assert (
        simlora("run", small, "--no-decision", "--set", "engine.max_loras=8", "--out", tmp_path / "b").returncode == 0
    )
    result = simlora("diff", tmp_path / "a", tmp_path / "b")
    assert result.returncode == 0, result.stderr
    assert "engine.max_loras" in result.stdout


def test_calibrate_from_a_recorded_run(tmp_path: Path) -> None:
    run = ROOT / "tests" / "recorded" / "vllm-0.20.2-h200" / "base8b-micro"
    result = simlora("calibrate", "--from-runs", run, "--out", tmp_path / "own.json")
    assert result.returncode == 0, result.stderr
    assert json.loads((tmp_path / "own.json").read_text())["schema"] == "simlora-calibration/1"
    assert "RMS" in result.stdout


def test_schema_is_json() -> None:
    assert json.loads(simlora("schema").stdout)["type"] == "object"


BAD = [
    (("run", "nowhere.yaml"), "nowhere.yaml"),
    (("run",), "FILE"),
    (("run", "scenarios/8b-h200.yaml", "--set", "engine.max_loras"), "--set"),
    (("run", "scenarios/8b-h200.yaml", "--set", "engine.max_lorax=3"), "engine.max_lorax"),
    (("run", "scenarios/8b-h200.yaml", "--set", "engine.version='0.7'"), "engine.version"),
    (("run", "scenarios/8b-h200.yaml", "--set", "calibration=nothing"), "calibration"),
    (("run", "scenarios/8b-h200.yaml", "--set", "engine.kind=slora"), "engine.version"),
    (("run", "scenarios/8b-h200.yaml", "--set", "engine.kind=tgi"), "slora, lorax, punica, sglang"),
    (("memory", "README.md"), "README.md"),
    (("trace", "README.md"), "README.md"),
    (("trace", "scenarios/traces/sample.csv", "--unit", "h"), "--unit"),
    (("diff", "scenarios", "scenarios"), "summary.json"),
    (("validate", "scenarios"), "scenarios"),
    (("calibrate", "--from-runs", "tests/recorded/vllm-0.20.2-h200/base8b-micro", "--out", "folder"), "--out"),
]  # fmt: skip


@pytest.mark.parametrize(("args", "named"), BAD, ids=[" ".join(a) for a, _ in BAD])
def test_bad_input_ends_with_2_and_one_message(args: tuple[str, ...], named: str) -> None:
    result = simlora(*args)
    assert result.returncode == 2, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert named in result.stderr


INTERRUPTED = """
import os, signal, sys, threading, time

def interrupt(main):
    while True:
        frame = sys._current_frames()[main]
        while frame is not None:
            if frame.f_code.co_name == "simulate":
                return os.kill(os.getpid(), signal.SIGINT)
            frame = frame.f_back
        time.sleep(0.001)

threading.Thread(target=interrupt, args=[threading.get_ident()], daemon=True).start()
from simlora.cli import main
main()
"""
"""A command line that gets a Ctrl-C as soon as it simulates, however long it takes to come so far."""


def test_interrupt_leaves_nothing_behind(small: Path, tmp_path: Path) -> None:
    arguments = ["run", str(small), "--set", "workload.num_requests=400000", "--out", str(tmp_path / "out")]
    result = subprocess.run([sys.executable, "-c", INTERRUPTED, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 130, result.stderr
    assert "Traceback" not in result.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["small.yaml"]


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.yaml")), ids=lambda p: p.name)
def test_shipped_scenarios_run_with_checks(path: Path, tmp_path: Path) -> None:
    result = simlora("run", path, "--check", "--no-decision", "--out", tmp_path / "out")
    assert result.returncode == 0, result.stderr
