"""The optional compiled build: what its list of modules must hold."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]


def hot_path() -> list[str]:
    """HOT_PATH of setup.py."""
    for node in ast.parse((ROOT / "setup.py").read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "HOT_PATH":
            return list(ast.literal_eval(node.value))
    raise AssertionError("setup.py has no HOT_PATH")


def classes(path: Path) -> dict[str, list[str]]:
    """Class -> names of its bases."""
    found = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
    return {node.name: [base.id for base in node.bases if isinstance(base, ast.Name)] for node in found}


def test_the_modules_exist() -> None:
    assert [path for path in hot_path() if not (ROOT / path).is_file()] == []


def test_no_interpreted_class_inherits_from_a_compiled_one() -> None:
    """Python refuses that when the class is used: TypeError, interpreted classes cannot inherit from compiled."""
    compiled = {name for path in hot_path() for name in classes(ROOT / path)}
    interpreted = [p for p in (ROOT / "simlora").rglob("*.py") if str(p.relative_to(ROOT)) not in hot_path()]
    offending = [name for path in interpreted for name, bases in classes(path).items() if compiled & set(bases)]
    assert offending == []
