"""Bad scenarios: each ends in one ConfigError with exactly the expected message, never in another exception."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from simlora.errors import ConfigError
from simlora.scenario.load import load_scenario, scenario_from_dict
from simlora.scenario.root import Scenario

CASES = Path(__file__).parent / "bad_scenarios" / "cases.txt"


def read_cases() -> list[tuple[str, str]]:
    lines = [line for line in CASES.read_text().splitlines() if line and not line.startswith("#")]
    return [(lines[i], lines[i + 1].strip()) for i in range(0, len(lines), 2)]


def message(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_scenario(path)
    return str(caught.value)


def test_there_are_enough_cases() -> None:
    assert len(read_cases()) >= 100


@pytest.mark.parametrize(("text", "expected"), read_cases())
def test_wrong_value(text: str, expected: str, tmp_path: Path) -> None:
    data = {"model": "llama-3.1-8b", **yaml.safe_load(text)}
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    assert message(path) == f"{path}: {expected}"


FILES = {
    "empty": ("", "file: None: is empty: a scenario needs at least the key model"),
    "comment only": ("# nothing\n", "file: None: is empty: a scenario needs at least the key model"),
    "syntax": ("model: [llama\nname: x\n", "line 2, column 5: None: not valid YAML: expected ',' or ']', but got ':'"),
    "tab": (
        "model: a\n\tname: b\n",
        "line 2, column 1: None: not valid YAML: found character '\\t' that cannot start any token",
    ),
    "duplicate key": (
        "model: llama-3.1-8b\nengine: {max_loras: 1, max_loras: 2}\n",
        "line 2, column 24: None: not valid YAML: key 'max_loras' is given twice",
    ),
    "list as key": ("? [a, b]\n: 1\n", "line 1, column 3: None: not valid YAML: a key must be text or a number"),
    "text": ("llama-3.1-8b\n", "scenario: 'llama-3.1-8b': must be a mapping of keys to values"),
    "list": ("- model\n", "scenario: ['model']: must be a mapping of keys to values"),
    "two documents": (
        "model: a\n---\nmodel: b\n",
        "line 2, column 1: None: not valid YAML: but found another document",
    ),
    "python object": (
        "model: !!python/object/apply:os.system [ls]\n",
        "line 1, column 8: None: not valid YAML: could not determine a constructor for the tag "
        "'tag:yaml.org,2002:python/object/apply:os.system'",
    ),
    "unknown alias": ("model: *a\n", "line 1, column 8: None: not valid YAML: found undefined alias 'a'"),
    "number as key": (
        "model: llama-3.1-8b\n1: 2\n",
        "1: 2: unknown key; known keys: name, seed, model, gpu, calibration, engine, adapters, workload, cluster, "
        "storage, slo, cost",
    ),
}


@pytest.mark.parametrize(("text", "expected"), FILES.values(), ids=FILES)
def test_wrong_file(text: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    assert message(path) == f"{path}: {expected}"


def test_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "none.yaml"
    assert message(path) == f"{path}: file: '{path}': no such file: the path of a scenario in YAML"


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    assert message(tmp_path) == f"{tmp_path}: file: '{tmp_path}': cannot be read as UTF-8 text (Is a directory)"


def test_binary_file(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_bytes(b"model: \xff\xfe\n")
    assert "cannot be read as UTF-8 text" in message(path)


def test_control_character(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_bytes(b"model: \x00\n")
    assert "not valid YAML" in message(path)


def test_deep_nesting(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("model: " + "[" * 5000 + "]" * 5000)
    assert message(path) == f"{path}: file: None: not valid YAML: nested too deeply"


def test_value_that_contains_itself(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("model: llama-3.1-8b\nadapters: &a {pinned: [*a]}\n")
    expected = "line 2, column 11: None: not valid YAML: found unconstructable recursive node"
    assert message(path) == f"{path}: {expected}"


def test_long_values_are_shortened() -> None:
    with pytest.raises(ConfigError) as caught:
        scenario_from_dict({"model": "llama-3.1-8b", "slo": list(range(10_000))})
    assert len(str(caught.value)) < 200


def test_the_error_keeps_its_parts_apart() -> None:
    with pytest.raises(ConfigError) as caught:
        scenario_from_dict({"model": "llama-3.1-8b", "engine": {"max_loras": 0}})
    error = caught.value
    assert (error.source, error.key, error.value) == ("<arguments>", "engine.max_loras", 0)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6) | st.integers(), inner, max_size=3),
    max_leaves=6,
)
SECTIONS = [name for name in Scenario.model_fields if name != "model"]


def section(name: str) -> st.SearchStrategy[Any]:
    """Junk, or a mapping with real keys of the section and junk values."""
    annotation: Any = Scenario.model_fields[name].annotation
    keys = [*getattr(annotation, "model_fields", {}), "kind"]
    return JUNK | st.dictionaries(st.sampled_from(keys), JUNK | st.integers(0, 64) | st.floats(0, 1), max_size=4)


@given(
    st.fixed_dictionaries(
        {"model": st.sampled_from(["llama-3.1-8b", "qwen3-30b-a3b", "gpt-oss-20b"]) | JUNK},
        optional={name: section(name) for name in SECTIONS},
    )
)
@settings(max_examples=300)
def test_junk_raises_nothing_but_config_error(data: dict[str, Any]) -> None:
    try:
        scenario_from_dict(data)
    except ConfigError as error:
        assert "\n" not in str(error.allowed)


@given(JUNK)
@settings(max_examples=100)
def test_junk_instead_of_a_mapping(data: Any) -> None:
    with pytest.raises(ConfigError):
        scenario_from_dict(data)
