"""The optional compiled build as a user makes it: one command in a new environment, and the same bytes come out."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NO_SOURCES = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "venv", "*.egg-info", "*.so")
RUNS = {
    "at the edge": ["8b-h200.yaml"],
    "preemptions": ["kv-bound.yaml"],
    "views of three replicas": [
        "8b-h200-mix.yaml", "--set", "cluster.replicas=3", "--set", "cluster.router.kind=lora-affinity",
    ],
}  # fmt: skip


def run(*command: str | Path, cwd: Path, **env: str) -> str:
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=cwd, env=os.environ | env)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    return result.stdout.strip()


@pytest.mark.compiled
@pytest.mark.timeout(1800)
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler: the compiled build needs cc")
def test_the_compiled_build_installs_with_one_command_and_writes_the_same_bytes(tmp_path: Path) -> None:
    sources, environment = tmp_path / "sources", tmp_path / "environment"
    shutil.copytree(ROOT, sources, ignore=NO_SOURCES)
    venv.create(environment, with_pip=True)
    compiled = environment / "bin" / "python"
    run(compiled, "-m", "pip", "install", "-q", sources, cwd=tmp_path, SIMLORA_COMPILE="1")
    where = run(compiled, "-c", "import simlora.engines.vllm.loop as loop; print(loop.__file__)", cwd=tmp_path)
    assert where.endswith(".so") and environment in Path(where).parents

    for name, (scenario, *options) in RUNS.items():
        for python, out in ((sys.executable, tmp_path / name / "here"), (compiled, tmp_path / name / "compiled")):
            arguments = [ROOT / "scenarios" / scenario, *options, "--no-decision", "--out", out]
            run(python, "-m", "simlora.cli", "run", *arguments, cwd=tmp_path)
        for file in ("summary.json", "requests.csv"):
            here, other = ((tmp_path / name / side / file).read_bytes() for side in ("here", "compiled"))
            assert here == other, f"{name}: {file} differs"
