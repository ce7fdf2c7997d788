"""Reads scenarios: from a YAML file, or from a mapping. All errors are ConfigError."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from simlora.errors import ARGUMENTS, ConfigError
from simlora.scenario.base import brief, config_error
from simlora.scenario.root import Scenario


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue
        key = loader.construct_object(key_node, deep=True)
        try:
            repeated = key in seen
        except TypeError:
            raise yaml.MarkedYAMLError(
                problem="a key must be text or a number", problem_mark=key_node.start_mark
            ) from None
        if repeated:
            raise yaml.MarkedYAMLError(problem=f"key {key!r} is given twice", problem_mark=key_node.start_mark)
        seen.add(key)
    loader.flatten_mapping(node)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
# YAML 1.1, which PyYAML follows, reads 1e3 as text; YAML 1.2 and every user read a number.
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


def read_yaml(path: Path) -> Any:
    """The file's content.

    Raises:
        ConfigError: missing, unreadable, empty, or not YAML.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(str(path), "file", str(path), "no such file: the path of a scenario in YAML") from None
    except (OSError, ValueError) as error:
        raise ConfigError(str(path), "file", str(path), f"cannot be read as UTF-8 text ({_reason(error)})") from None
    try:
        data = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "file"
        raise ConfigError(str(path), line, None, f"not valid YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(str(path), "file", None, f"not valid YAML: {_reason(error)}") from None
    if data is None:
        raise ConfigError(str(path), "file", None, "is empty: a scenario needs at least the key model")
    return data


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def load_scenario(path: str | Path) -> Scenario:
    """The scenario in a YAML file. Relative paths in it start at the file's folder.

    Raises:
        ConfigError: the file is missing or not YAML, or holds a wrong value.
    """
    data = read_yaml(Path(path))
    return scenario_from_dict(data, source=str(path), folder=Path(path).parent)


def scenario_from_dict(data: Mapping[str, Any], source: str = ARGUMENTS, folder: Path | None = None) -> Scenario:
    """The scenario in a mapping of the YAML's form.

    Args:
        source: stands first in every message.
        folder: where relative paths start; default: the working directory.

    Raises:
        ConfigError: a wrong value; the message names key path, value and what is allowed.
    """
    if not isinstance(data, Mapping):
        raise ConfigError(source, "scenario", brief(data), "must be a mapping of keys to values")
    plain = dict(data)
    try:
        return Scenario.model_validate(plain, context={"source": source, "folder": folder or Path()})
    except ValidationError as error:
        raise config_error(error, source, plain) from None


def changed(scenario: Scenario, changes: Mapping[str, Any]) -> Scenario:
    """The scenario with other values; defaults that depend on them are resolved anew.

    Args:
        changes: dotted key path -> value, e.g. {"engine.max_loras": 16}; null goes back to the default.

    Raises:
        ConfigError: the result is not a valid scenario.
    """
    raw = scenario.raw
    for path, value in changes.items():
        *sections, key = path.split(".")
        target = raw
        for section in sections:
            inner = target.get(section)
            if section == "gpu" and isinstance(inner, str):
                inner = {"name": inner}
            target[section] = dict(inner) if isinstance(inner, dict) else {}
            target = target[section]
        target[key] = value
    return scenario_from_dict(raw, scenario.source, scenario.folder)
