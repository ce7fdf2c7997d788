"""Reads scenarios: from a YAML file, or from a mapping. All errors are ConfigError."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from simlora.errors import ConfigError
from simlora.scenario.messages import brief, config_error
from simlora.scenario.root import ARGUMENTS, Scenario
from simlora.scenario.yaml_file import read_yaml


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
