"""The README's table of engines against the code: every cell names the test that holds it."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from simlora.scenario.engines import ENGINES

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
COLUMNS = ["engine", "scheduler", "memory", "loading", "kernels", "parallelism"]


def section(title: str) -> str:
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", README, re.MULTILINE | re.DOTALL)
    assert found is not None, f"the README has no section {title}"
    return found[1]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def engine_rows() -> dict[str, list[str]]:
    """Engine -> the other cells of its row."""
    table = section("Engines").partition("\n| ")[2].partition("\n\n")[0]
    lines = [cells(line) for line in table.splitlines()]
    assert lines[0] == COLUMNS
    return {row[0]: row[1:] for row in lines[2:]}


def names_in(path: Path) -> list[str]:
    tree = ast.parse(path.read_text())
    return [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


ROWS = engine_rows()
DEFINED = Counter(name for path in (ROOT / "tests").rglob("test_*.py") for name in names_in(path))


def test_every_engine_has_a_row() -> None:
    assert set(ROWS) == {*ENGINES, "dedicated"}


@pytest.mark.parametrize("engine", ROWS)
def test_every_cell_names_a_test_that_exists_once(engine: str) -> None:
    assert len(ROWS[engine]) == len(COLUMNS) - 1
    for column, cell in zip(COLUMNS[1:], ROWS[engine], strict=True):
        names = re.findall(r"`(test_\w+)`", cell)
        assert names, f"{engine}, {column}: no test"
        assert re.search(r"[a-z]", re.sub(r"`test_\w+`", "", cell)), f"{engine}, {column}: no words"
        for name in names:
            assert DEFINED[name] == 1, f"{engine}, {column}: {DEFINED[name]} tests are called {name}"


def test_tests_named_beside_the_table_exist_and_its_files_hold_those_in_it() -> None:
    text = section("Engines")
    files = [ROOT / path for path in re.findall(r"tests/[\w/]+\.py", text)]
    assert files and all(path.exists() for path in files)
    listed = {name for path in files for name in names_in(path)}
    assert set(re.findall(r"`(test_\w+)`", text)) <= listed
