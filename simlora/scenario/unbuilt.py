"""The one list of keys whose feature is not built yet. They are refused by name; the list shrinks as features come."""

from __future__ import annotations

from typing import Any

from simlora.scenario.base import WrongValueError

KEYS = (
    "cluster.placement",
    "cluster.autoscaler",
    "cluster.faults",
    "adapters.priority",
)
"""Keys that may only be absent or empty (null, [], {})."""


def drop_unbuilt(data: dict[Any, Any]) -> dict[Any, Any]:
    """A copy of a scenario's raw mapping without the empty unbuilt keys.

    Raises:
        WrongValueError: a feature is asked for that is not built.
    """
    for path in KEYS:
        section, key = path.split(".")
        values = data.get(section)
        if not isinstance(values, dict) or values.get(key) is None:
            continue
        if values[key] not in ([], {}, ()):
            raise WrongValueError(path, values[key], "not built yet: leave it out or empty")
    return {name: _without_keys(name, values) for name, values in data.items()}


def _without_keys(section: Any, values: Any) -> Any:
    if not isinstance(values, dict):
        return values
    return {key: value for key, value in values.items() if f"{section}.{key}" not in KEYS}
