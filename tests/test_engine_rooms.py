"""Engines own what is theirs: outside an engine's folder, its schema and the registry, no code of simlora/ names it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from simlora.engines.registry import engine_spec
from simlora.scenario.engines import ENGINES, engine_config

ROOT = Path(__file__).parents[1]
SIMLORA = ROOT / "simlora"
FOLDERS = {"grouped": "baselines", "sequential": "baselines", "merged-swap": "baselines"}
"""Kinds that share a room."""
KINDS = tuple(kind for kind in ENGINES if kind != "vllm")
"""vLLM is a scenario's default, the server that is recorded, and the engine of the shipped calibrations."""
TABLES = {"scenario/engines/__init__.py"}
ROUTERS = {"cluster/punica.py", "scenario/cluster.py"}
"""They name a router that is called after an engine, whose scheduler it is."""
LINES = 400


def _room(kind: str) -> str:
    return FOLDERS.get(kind, kind)


def _names(path: Path) -> Iterator[tuple[int, str, bool]]:
    """(line, text, whether it is a string) of every identifier and every string but docstrings; comments are prose."""
    tree = ast.parse(path.read_text())
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        for name in ("id", "attr", "name", "asname", "arg", "module"):
            value = getattr(node, name, None)
            if isinstance(value, str):
                yield line, value, False
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield line, node.value, True


def _names_kind(text: str, is_string: bool, kind: str) -> bool:
    """The text holds the kind as a word. Of kinds that are everyday words: it is that string, or a class of theirs."""
    if kind in ("grouped", "sequential"):
        return (is_string and text == kind) or bool(re.search(rf"\b{kind.title()}(Engine|Config)\b", text))
    word = kind.replace("-", "_")
    return bool(re.search(rf"(?<![a-z]){word}(?![a-z])", text.lower().replace("-", "_")))


FILES = sorted(SIMLORA.rglob("*.py"))


@pytest.mark.parametrize("kind", KINDS)
def test_no_code_outside_its_room_names_an_engine(kind: str) -> None:
    room = _room(kind)
    found = []
    for path in FILES:
        place = path.relative_to(SIMLORA).as_posix()
        own = place.startswith(f"engines/{room}/") or place == f"scenario/engines/{room}.py"
        if own or place in TABLES | ROUTERS:
            continue
        found += [
            f"{place}:{line}: {text}" for line, text, is_string in _names(path) if _names_kind(text, is_string, kind)
        ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("kind", ENGINES)
def test_every_kind_has_a_spec_and_a_schema(kind: str) -> None:
    assert engine_spec(kind).kind == kind == engine_config(kind).model_fields["kind"].default
    assert (SIMLORA / "engines" / _room(kind)).is_dir() and (
        SIMLORA / "scenario/engines" / f"{_room(kind)}.py"
    ).is_file()


def _modules(folder: str, package: str) -> dict[str, Path]:
    """Module name -> file."""
    root = ROOT / folder
    found = {}
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join((package, *(part for part in parts if part != "__init__")))] = path
    return found


def _imports(path: Path, module: str, known: dict[str, Path]) -> set[str]:
    """Modules that a file imports at its top level, for types included; not what functions import when they run."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found: set[str] = set()
    nodes = list(ast.parse(path.read_text()).body)
    while nodes:
        node = nodes.pop()
        if isinstance(node, (ast.If, ast.Try)):
            nodes += [*node.body, *node.orelse]
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            names = {f"{base}.{alias.name}" for alias in node.names}
            found |= (names & known.keys()) or {base}
    return found & known.keys()


def test_no_circle_of_files() -> None:
    known = (
        _modules("simlora", "simlora")
        | _modules("calibrate", "simlora.calibrate")
        | _modules("kernels", "simlora.kernels")
    )
    graph = {module: _imports(path, module, known) - {module} for module, path in known.items()}
    while ends := graph.keys() - (
        {module for module, imported in graph.items() if imported & graph.keys()}
        & {other for imported in graph.values() for other in imported}
    ):
        graph = {module: imported - ends for module, imported in graph.items() if module not in ends}
    assert not graph, f"circles among: {', '.join(sorted(graph))}"


@pytest.mark.parametrize("folder", ["simlora", "calibrate", "kernels", "benchmarks", "studies"])
def test_no_file_is_too_long(folder: str) -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in (ROOT / folder).rglob("*.py")}
    long = {path.relative_to(ROOT).as_posix(): lines for path, lines in lengths.items() if lines > LINES}
    assert not long, long
