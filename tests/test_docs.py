"""The pages against the code: links and paths that exist, command lines that would be read, YAML that loads."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from simlora.cli import app
from simlora.scenario.load import scenario_from_dict

ROOT = Path(__file__).parents[1]
PAGES = [Path("README.md"), Path("CONTRIBUTING.md"), *sorted(p.relative_to(ROOT) for p in (ROOT / "docs").glob("*.md"))]
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)


# --- links ------------------------------------------------------------------------------------------------------------


def anchors(path: Path) -> set[str]:
    """Of the headings, as GitHub and MkDocs make them."""
    titles = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_links_lead_somewhere(path: Path) -> None:
    page, broken = ROOT / path, []
    for link in re.findall(r"\]\(([^)\s]+)\)", CODE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_files_that_are_named_exist(path: Path) -> None:
    named = re.findall(
        r"(?<![\w/.-])((?:simlora|calibrate|kernels|benchmarks|studies|scenarios|tests|docs)/[\w/.-]+\.(?:py|md|json|yaml|csv))\b",
        (ROOT / path).read_text(),
    )
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.skipif(importlib.util.find_spec("material") is None, reason="needs mkdocs-material: pip install .[docs]")
def test_the_pages_build(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


# --- scenarios --------------------------------------------------------------------------------------------------------


def test_scenarios_in_the_docs_load() -> None:
    blocks = [
        yaml.safe_load(block)
        for path in PAGES
        for block in re.findall(r"^```yaml\n(.*?)^```", (ROOT / path).read_text(), re.MULTILINE | re.DOTALL)
    ]
    assert blocks
    for data in blocks:
        if "trace" in data.get("workload", {}):
            data["workload"]["trace"]["path"] = str(ROOT / "scenarios" / "traces" / "sample.csv")
        scenario_from_dict({"model": "llama-3.1-8b"} | data)


# --- command lines ----------------------------------------------------------------------------------------------------


def block_lines(page: str) -> list[str]:
    """Lines of fenced blocks that a shell would run; continued ones as one."""
    lines = []
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("$ "):
                lines.append(line[2:])
            elif language != "console" and line.startswith("simlora "):
                lines.append(line)
    return lines


def inline_lines(page: str) -> list[str]:
    """Code within the text."""
    text = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
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


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_command_lines_are_read(path: Path) -> None:
    page = (ROOT / path).read_text()
    mentioned = [call for call in simlora_calls(inline_lines(page)) if len(call) == 1]
    assert {call[0] for call in mentioned} <= set(COMMANDS)
    calls = simlora_calls(block_lines(page)) + [call for call in simlora_calls(inline_lines(page)) if len(call) > 1]
    wrong = {" ".join(call): why for call in calls if (why := problem(call)) is not None}
    assert not wrong, wrong


def test_the_pages_show_the_main_commands() -> None:
    lines = [line for path in PAGES for line in block_lines((ROOT / path).read_text())]
    assert {call[0] for call in simlora_calls(lines)} >= {"run", "compare", "memory", "diff", "validate", "record"}
