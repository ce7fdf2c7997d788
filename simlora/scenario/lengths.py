"""Distributions of prompt and output lengths, in tokens."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from simlora.scenario.base import Config, WrongValueError, kinds

Tokens = Annotated[int, Field(ge=1, le=10_000_000)]


class LognormalLengths(Config):
    """exp(Normal(ln median, sigma)), rounded, held within min and max."""

    kind: Literal["lognormal"]
    median: float = Field(gt=0, le=1e7, description="Median length in tokens")
    sigma: float = Field(ge=0, le=10, description="Standard deviation of the logarithm")
    min: Tokens = Field(default=1, description="Shortest length")
    max: Tokens | None = Field(default=None, description="Longest length; null: only the context limits it")

    @model_validator(mode="after")
    def _ordered(self) -> LognormalLengths:
        if self.max is not None and self.max < self.min:
            raise WrongValueError("max", self.max, f"must be at least min ({self.min})")
        return self


class UniformLengths(Config):
    """Whole numbers from min to max, both included."""

    kind: Literal["uniform"]
    min: Tokens = Field(default=1, description="Shortest length")
    max: Tokens = Field(description="Longest length")

    @model_validator(mode="after")
    def _ordered(self) -> UniformLengths:
        if self.max < self.min:
            raise WrongValueError("max", self.max, f"must be at least min ({self.min})")
        return self


class FixedLengths(Config):
    """One length."""

    kind: Literal["fixed"]
    value: Tokens = Field(description="Length in tokens")


class EmpiricalLengths(Config):
    """Draws with replacement from a column of a CSV file."""

    kind: Literal["empirical"]
    path: str = Field(min_length=1, description="CSV file; a relative path starts at the scenario file")
    column: str = Field(min_length=1, description="Column that holds the lengths")


Lengths = Annotated[
    LognormalLengths | UniformLengths | FixedLengths | EmpiricalLengths,
    Field(discriminator="kind"),
    kinds("lognormal", "uniform", "fixed", "empirical"),
]
"""`kind` selects the class."""
