"""JSON values as checked numbers. Errors name `file:line`, the key and the value."""

from __future__ import annotations

import json
import math
from typing import Any

from simlora.errors import ConfigError
from simlora.scenario.base import brief
from simlora.workload.request_table import MAX_TOKENS


def loads(text: str, where: str) -> Any:
    """Any JSON value; ConfigError for text that is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(where, "JSON", brief(text), f"valid JSON ({error})") from error


def field(record: dict[str, Any], key: str, where: str) -> Any:
    """record[key]; ConfigError if it is missing."""
    if key not in record:
        raise ConfigError(where, key, None, f"this key is missing; found: {', '.join(record)}")
    return record[key]


def tokens(value: Any, key: str, where: str, minimum: int) -> int:
    """A whole number from minimum to the largest int32. Raises ConfigError for anything else."""
    whole = is_number(value) and value == int(value)
    if not whole or not minimum <= value <= MAX_TOKENS:
        raise ConfigError(where, key, brief(value), f"a whole number of tokens of at least {minimum}")
    return int(value)


def time(value: Any, key: str, where: str) -> float:
    """A finite number >= 0, in the trace's own unit. Raises ConfigError for anything else."""
    if not is_number(value) or value < 0:
        raise ConfigError(where, key, brief(value), "a time of at least 0")
    return float(value)


def label(value: Any, key: str, where: str) -> str:
    """A name: text or a whole number; null is "". Raises ConfigError for anything else."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ConfigError(where, key, brief(value), "a name or a number")
    return str(value).strip()


def is_number(value: Any) -> bool:
    """A finite number that a float can hold; true and false are none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False
