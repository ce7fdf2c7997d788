"""The architecture as a test: imports go down only, and some packages appear in one place."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = [
    {"cli"},
    {"report", "validate"},
    {"plan"},
    {"results"},
    {"sim"},
    {"engines", "cluster"},
    {"runs"},
    {"latency", "memory", "workload"},
    {"scenario"},
    {"errors"},
]
"""From the top down. A module may import its own package, packages of lower layers, and packages of its own layer only
where ALLOWED says so."""
ALLOWED = {("cluster", "engines"), ("engines", "cluster"), ("validate", "report")}
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def _imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module)
    return found


MODULES = sorted((ROOT / "simlora").rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=[str(p.relative_to(ROOT)) for p in MODULES])
def test_imports_go_down(path: Path) -> None:
    parts = path.relative_to(ROOT / "simlora").with_suffix("").parts
    own = parts[0]
    if own == "__init__":
        return
    for module in _imports(path):
        head, _, rest = module.partition(".")
        assert head not in {"torch", "triton"}, f"{path} imports {module}: simlora runs without a GPU stack"
        if head == "simpy":
            assert own == "sim", f"{path}: only sim/ imports simpy"
        if head != "simlora" or not rest:
            continue
        target = rest.split(".")[0]
        if target in {"kernels", "calibrate"}:
            assert own == "cli", f"{path}: only the command line reaches for {module}"
            continue
        if target == own or (own, target) in ALLOWED:
            continue
        assert LEVEL[target] > LEVEL[own], f"{path} ({own}) imports {module}: imports go down only"


@pytest.mark.parametrize("folder", ["calibrate", "kernels"])
def test_gpu_folders(folder: str) -> None:
    allowed = {
        "kernels": {"simlora.kernels"},
        "calibrate": {"simlora.kernels", "simlora.latency", "simlora.calibrate", "simlora.scenario", "simlora.errors"},
    }
    for path in (ROOT / folder).rglob("*.py"):
        for module in _imports(path):
            if module.startswith("simlora"):
                assert any(module.startswith(name) for name in allowed[folder]), f"{path} imports {module}"
