"""What every scenario model shares: frozen, no unknown keys, null means "not given"; and one message for what is wrong.

Knows no field of its own.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from simlora.errors import ConfigError

_Model = TypeVar("_Model", bound=BaseModel)


class WrongValueError(ValueError):
    """A wrong value found inside a model: key is relative to that model ("" is the model itself)."""

    def __init__(self, key: str, value: object, allowed: str) -> None:
        self.key, self.value, self.allowed = key, value, allowed
        super().__init__(f"{key}: {value!r}: {allowed}")


class Config(BaseModel):
    """Base of all scenario models. Types are not coerced: "8" is not a number and true is not 1."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known_keys_only(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for key in data:
            if key not in cls.model_fields:
                raise WrongValueError(str(key), data[key], unknown_key(key, list(cls.model_fields)))
        given = {key: value for key, value in data.items() if value is not None}
        for key, field in cls.model_fields.items():
            if field.is_required() and key not in given:
                raise WrongValueError(key, None, f"required: {field.description or key}")
        return given

    def filled(self, **defaults: Any) -> Self:
        """A copy with defaults in place of the fields that are None."""
        missing = {key: value for key, value in defaults.items() if getattr(self, key) is None}
        return self.model_copy(update=missing) if missing else self


def unknown_key(key: object, known: list[str]) -> str:
    """The message for a key that does not exist: the nearest known one, and all of them."""
    near = difflib.get_close_matches(str(key), known, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"unknown key; {hint}known keys: {', '.join(known)}"


def unknown_name(name: str, spellings: list[str], known: list[str]) -> str:
    """The message for a name that a catalogue lacks: near matches, then all names."""
    near = difflib.get_close_matches(name.lower(), spellings, n=3)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return f"{hint}known: {', '.join(known)}"


def kinds(*names: str) -> BeforeValidator:
    """A validator that refuses (WrongValueError) anything but a mapping whose `kind` is one of the names; stands beside
    a union's discriminator."""

    def check(data: Any) -> Any:
        if isinstance(data, dict) and data.get("kind") is None:
            raise WrongValueError("kind", None, f"required, one of: {', '.join(names)}")
        if isinstance(data, dict) and data["kind"] not in names:
            raise WrongValueError("kind", data["kind"], f"must be one of: {', '.join(names)}")
        if isinstance(data, (str, int, float, list, tuple)):
            raise WrongValueError("", data, f"must be a mapping with a kind, one of: {', '.join(names)}")
        return data

    return BeforeValidator(check)


def auto(description: str, **constraints: Any) -> Any:
    """A field whose default depends on other fields: None until the scenario resolves it to a concrete value."""
    return Field(default=None, description=description, **constraints)


def by_kind(table: Mapping[str, str], described: Callable[[str], type[Config]], default: str) -> BeforeValidator:
    """Reads a mapping as the model that its `kind` stands for in the table; stands before a field of their base class.

    A union would need all models at import; here a kind is added by an entry, and read when a scenario names it.

    Args:
        table: kind -> what `described` finds the model by.
        default: the kind that may be left out.
    """

    def read(data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        kind = default if data.get("kind") is None else data["kind"]
        *names, last = table
        if kind not in [*names, last]:
            raise WrongValueError("kind", kind, f"must be one of: {', '.join(names)} or {last}")
        return read_as(described(kind), data)

    return BeforeValidator(read)


def found(place: str) -> Any:
    """The object at "module:name", imported only now."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


_MAX_VALUE = 80
"""Longest value shown in full, in characters."""

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
    key, value, allowed = _first_problem(error, data)
    return ConfigError(source, key or "scenario", brief(value), allowed)


def read_as(model: type[_Model], data: Any) -> _Model:
    """Data as that model, from a validator of another one: keys are relative to the data. Raises WrongValueError."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise WrongValueError(*_first_problem(error, data)) from None


def _first_problem(error: ValidationError, data: Any) -> tuple[str, Any, str]:
    """Key, value, and what is allowed."""
    first = error.errors(include_url=False)[0]
    path = _key_path(first["loc"], data)
    kind, context = first["type"], first.get("ctx", {})
    problem = context.get("error")
    if isinstance(problem, WrongValueError):
        path += [problem.key] if problem.key else []
        return ".".join(path), problem.value, problem.allowed
    return ".".join(path), first["input"], _allowed(kind, context, first["msg"])


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
        if isinstance(data, dict) and entered and part == data.get("kind"):
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
