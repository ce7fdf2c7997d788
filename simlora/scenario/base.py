"""What every scenario model shares: frozen, no unknown keys, null means "not given". Knows no field of its own."""

from __future__ import annotations

import difflib
from typing import Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator


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


def kinds(*names: str) -> BeforeValidator:
    """Refuses anything but a mapping whose `kind` is one of the names; stands beside a union's discriminator."""

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
