"""The one list of keys whose feature is not built yet. They are refused by name; the list shrinks as features come."""

from __future__ import annotations

from typing import Any

from simlora.scenario.base import WrongValueError

ENGINE_KINDS = ("slora", "punica", "lorax", "sglang", "dedicated")
"""Engines that simlora will simulate, but does not yet."""

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
        WrongValueError: one of them holds something.
    """
    for path in KEYS:
        section, key = path.split(".")
        values = data.get(section)
        if not isinstance(values, dict) or key not in values:
            continue
        if values[key] not in (None, [], {}, ()):
            raise WrongValueError(path, values[key], "not built yet: leave it out or empty")
        data = {**data, section: {name: value for name, value in values.items() if name != key}}
    return data
