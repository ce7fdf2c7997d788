"""The README against the code: tests that its table of engines names, and command lines that it shows."""

from __future__ import annotations

import ast
import re
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import typer

from simlora.cli import app
from simlora.scenario.engines import ENGINES

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
COLUMNS = ["engine", "scheduler", "memory", "loading", "kernels", "parallelism"]
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


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


# --- command lines ----------------------------------------------------------------------------------------------------


def block_lines() -> list[str]:
    """Lines of fenced blocks that a shell would run; continued ones as one."""
    lines = []
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", README, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("$ "):
                lines.append(line[2:])
            elif language != "console" and line.startswith("simlora "):
                lines.append(line)
    return lines


def inline_lines() -> list[str]:
    """Code within the text."""
    text = re.sub(r"^```.*?^```", "", README, flags=re.MULTILINE | re.DOTALL)
    return [code.replace("\n", " ") for code in re.findall(r"`(simlora\s[^`]+)`", text)]


def simlora_calls(lines: list[str]) -> list[list[str]]:
    """The words behind `simlora`, without what the shell takes for itself."""
    calls = []
    for line in lines:
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if not set(word) <= set("();<>|&"):
                words.append(word)
                continue
            if words[:1] == ["simlora"]:
                calls.append(words[1:])
            words = []
    return calls


def problem(words: list[str]) -> str | None:
    """Why the command line would not even be read; None if it would."""
    command = COMMANDS.get(words[0])
    if command is None:
        return f"no command {words[0]}"
    options = {
        name: p for p in command.params if p.param_type_name == "option" for name in (*p.opts, *p.secondary_opts)
    }
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    given, rest = 0, iter(words[1:])
    for word in rest:
        name, equals, _ = word.partition("=")
        if not word.startswith("-"):
            given += 1
        elif name not in options:
            return f"{words[0]} has no option {name}"
        elif not options[name].is_flag and not equals and next(rest, None) is None:
            return f"{words[0]} {name} needs a value"
    least = sum(p.required for p in arguments)
    most = float("inf") if any(p.nargs == -1 for p in arguments) else len(arguments)
    return None if least <= given <= most else f"{words[0]} takes {least} to {most} arguments, not {given}"


def test_wrong_command_lines_are_found() -> None:
    assert problem(["fly"]) == "no command fly"
    assert problem(["run", "a.yaml", "--fast"]) == "run has no option --fast"
    assert problem(["run", "a.yaml", "--out"]) == "run --out needs a value"
    assert problem(["diff", "a"]) is not None and problem(["run", "a.yaml", "b.yaml"]) is not None
    assert problem(["run", "a.yaml", "--set", "seed=2", "--out=here"]) is None


def test_command_lines_are_read() -> None:
    mentioned = [call for call in simlora_calls(inline_lines()) if len(call) == 1]
    assert {call[0] for call in mentioned} <= set(COMMANDS)
    calls = simlora_calls(block_lines()) + [call for call in simlora_calls(inline_lines()) if len(call) > 1]
    assert {call[0] for call in calls} >= {"run", "memory", "diff", "validate"}
    wrong = {" ".join(call): why for call in calls if (why := problem(call)) is not None}
    assert not wrong, wrong
