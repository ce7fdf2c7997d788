"""The `adapters` key: how many adapters there are, their ranks, and which of them the requests ask for.

Adapter ids are 1 .. count; 0 is the base model.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from simlora.scenario.base import Config, WrongValueError, auto, kinds
from simlora.scenario.lora_modules import AdapterModules

SHARE_TOLERANCE = 1e-6
"""How far shares may sum from 1: rounding of decimals, not a wrong list."""

Share = Annotated[float, Field(ge=0, le=1)]


class UniformPopularity(Config):
    """Every adapter gets the same share of requests."""

    kind: Literal["uniform"]


class ZipfPopularity(Config):
    """Adapter i gets a share proportional to i ** -alpha."""

    kind: Literal["zipf"]
    alpha: float = Field(default=1.0, ge=0, le=20, description="Exponent; 0 is uniform")


class PowerPopularity(Config):
    """Adapter i gets the share (i / count) ** alpha - ((i - 1) / count) ** alpha.

    Source: S-LoRA's trace generator takes floor(count * x) with x from numpy.random.power(alpha).
    """

    kind: Literal["power"]
    alpha: float = Field(
        default=1.0, gt=0, le=20, description="Exponent; 1 is uniform, below 1 the first adapters are the popular ones"
    )


class ExplicitPopularity(Config):
    """One request rate per adapter, in order of id."""

    kind: Literal["explicit"]
    rates_rps: Annotated[tuple[Annotated[float, Field(ge=0)], ...], Field(strict=False)] = Field(
        min_length=1, description="Requests per second of adapter 1, 2, ...; their sum is the arrival rate"
    )

    @model_validator(mode="after")
    def _some(self) -> ExplicitPopularity:
        if not 0 < sum(self.rates_rps) < math.inf:
            raise WrongValueError("rates_rps", list(self.rates_rps), "at least one rate must be above 0")
        return self


class PopularityClass(Config):
    """Adapters that share a part of the traffic evenly."""

    count: int = Field(ge=1, le=1_000_000, description="Adapters in the class")
    share: float = Field(ge=0, le=1, description="Share of the adapters' requests that the class gets")


class ClassPopularity(Config):
    """Classes of adapters, in order of id; uniform within each."""

    kind: Literal["classes"]
    classes: Annotated[tuple[PopularityClass, ...], Field(strict=False)] = Field(
        min_length=1, description="The classes"
    )

    @model_validator(mode="after")
    def _sum(self) -> ClassPopularity:
        check_sum("classes", [item.share for item in self.classes])
        return self


Popularity = Annotated[
    UniformPopularity | ZipfPopularity | PowerPopularity | ExplicitPopularity | ClassPopularity,
    Field(discriminator="kind"),
    kinds("uniform", "zipf", "power", "explicit", "classes"),
]


class AdaptersConfig(Config):
    """The adapters of the scenario and the share of the base model."""

    count: int = auto(
        "Number of adapters; null: as popularity lists, else 1 (0 with enable_lora: false)", ge=0, le=1_000_000
    )
    ranks: dict[int, float] = Field(
        default={16: 1.0},
        description="One rank, or {rank: share}: counts by largest remainder, assigned by a seeded permutation. "
        "Default: 16, or engine.max_lora_rank if that is lower",
    )
    rank_by_popularity: Literal["largest-first", "smallest-first"] | None = Field(
        default=None, description="Give the most popular adapters the largest or smallest ranks; null: independent"
    )
    popularity: Popularity = Field(
        default=UniformPopularity(kind="uniform"), description="Share of requests per adapter"
    )
    target_modules: AdapterModules = Field(default="all-linear", description="Modules that the adapters hold")
    pinned: Annotated[tuple[int, ...], Field(strict=False)] = Field(
        default=(), description="Ids of adapters that never leave their slot"
    )
    preload: bool = Field(
        default=False,
        description="Register all adapters before the run (--lora-modules), adapter 1 last: the caches are warm",
    )
    base_fraction: float = Field(default=0.0, ge=0, le=1, description="Share of requests for the base model")

    @field_validator("ranks", mode="before")
    @classmethod
    def _rank_mix(cls, value: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            value = {value: 1.0}
        if not isinstance(value, dict) or not value:
            raise WrongValueError("", value, "one rank, or a mapping {rank: share}")
        mix = {_rank(key): _share(key, share) for key, share in value.items()}
        if len(mix) < len(value):
            raise WrongValueError("", value, "a rank is listed twice")
        check_sum("", list(mix.values()))
        return mix

    def rank_counts(self) -> dict[int, int]:
        """Adapters per rank, by largest remainder (ties: the smaller rank first); sums to count."""
        return largest_remainder(self.ranks, self.count)


def largest_remainder(shares: dict[int, float], total: int) -> dict[int, int]:
    """Whole numbers proportional to shares (which sum to 1) that sum to total; ties go to the smaller key."""
    exact = {key: share * total for key, share in shares.items()}
    counts = {key: math.floor(value + 1e-9) for key, value in exact.items()}
    by_remainder = sorted(shares, key=lambda key: (round(counts[key] - exact[key], 9), key))
    for key in by_remainder[: total - sum(counts.values())]:
        counts[key] += 1
    return counts


def check_sum(key: str, shares: list[float]) -> None:
    """Shares must sum to 1 within SHARE_TOLERANCE.

    Raises:
        WrongValueError: they do not.
    """
    total = math.fsum(shares)
    if not abs(total - 1) <= SHARE_TOLERANCE:
        raise WrongValueError(key, shares, f"shares must sum to 1, not {total:.6g}")


def _rank(key: Any) -> int:
    if isinstance(key, str) and key.isdecimal():  # JSON has text keys only
        key = int(key)
    if not isinstance(key, int) or isinstance(key, bool) or not 1 <= key <= 512:
        raise WrongValueError(str(key), key, "a rank is a whole number from 1 to 512")
    return key


def _share(rank: Any, share: Any) -> float:
    if not isinstance(share, (int, float)) or isinstance(share, bool) or not 0 <= share <= 1:
        raise WrongValueError(str(rank), share, "a share is a number from 0 to 1")
    return float(share)
