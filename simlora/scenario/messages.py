"""Turns the first validation error into one message of the form `source: key: value: what is allowed`."""

from __future__ import annotations

import reprlib
from typing import Any

from pydantic import ValidationError

from simlora.errors import ConfigError
from simlora.scenario.base import WrongValueError

_MAX_VALUE = 80
"""Longest value shown in full, in characters."""

DEFAULT_ENGINE = "vllm"
"""The one kind that may be left out."""

_TYPES = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "dict_type": "must be a mapping of keys to values",
    "model_type": "must be a mapping of keys to values",
    "model_attributes_type": "must be a mapping of keys to values",
    "string_too_short": "must not be empty",
    "too_short": "must hold at least {min_length}",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "string_too_long": "must have at most {max_length} characters",
    "literal_error": "must be one of: {expected}",
    "recursion_loop": "must not contain itself",
}


def config_error(error: ValidationError, source: str, data: Any) -> ConfigError:
    """The first error of a validation as a ConfigError; data is what was validated."""
    first = error.errors(include_url=False)[0]
    path = _key_path(first["loc"], data)
    kind, context = first["type"], first.get("ctx", {})
    problem = context.get("error")
    if isinstance(problem, WrongValueError):
        path += [problem.key] if problem.key else []
        return ConfigError(source, ".".join(path) or "scenario", brief(problem.value), problem.allowed)
    allowed = _allowed(kind, context, first["msg"])
    return ConfigError(source, ".".join(path) or "scenario", brief(first["input"]), allowed)


def _allowed(kind: str, context: dict[str, Any], message: str) -> str:
    template = _TYPES.get(kind)
    if template is None:
        return message
    return template.format(**{key: _plain(value) for key, value in context.items()})


def _plain(value: Any) -> str:
    """Numbers with thousands separators, names without quotes."""
    return f"{value:,.15g}" if isinstance(value, (int, float)) else str(value).replace("'", "")


def _key_path(location: tuple[int | str, ...], data: Any) -> list[str]:
    """Keys as the user wrote them: without the tags that pydantic adds for `kind` and for alternatives."""
    path: list[str] = []
    entered = False  # a tag can only follow the key that was just entered
    for part in location:
        if isinstance(data, dict) and entered and part == (data.get("kind") or DEFAULT_ENGINE):
            entered = False
            continue
        entered = True
        path.append(str(part))
        if isinstance(data, dict):
            data = data.get(part)
        elif isinstance(data, (list, tuple)) and isinstance(part, int) and part < len(data):
            data = data[part]
        else:
            data = None
    return path


class Shown:
    """A value too long to show in full; repr gives a shortened form."""

    def __init__(self, value: object) -> None:
        self._text = reprlib.repr(value)

    def __repr__(self) -> str:
        return self._text


def brief(value: object) -> object:
    """The value as a user writes it (lists, not tuples), or a stand-in with a short repr."""
    if isinstance(value, tuple):
        value = list(value)
    return (
        value
        if value is None or isinstance(value, (int, float, bool)) or len(repr(value)) <= _MAX_VALUE
        else Shown(value)
    )
