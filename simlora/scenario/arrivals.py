"""When requests arrive. Rates are requests per second, times seconds from the start of the run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from simlora.scenario.base import Config, WrongValueError, auto, kinds

Rate = Annotated[float, Field(gt=0, le=1e6)]
_RATE = "Requests per second; null: the sum of adapters.popularity.rates_rps if explicit, else 1"


class PoissonArrivals(Config):
    """Exponential gaps."""

    kind: Literal["poisson"]
    rate_rps: float = auto(_RATE, gt=0, le=1e6)


class GammaArrivals(Config):
    """Gamma-distributed gaps with a coefficient of variation: cv 1 is Poisson, above it bursty."""

    kind: Literal["gamma"]
    rate_rps: float = auto(_RATE, gt=0, le=1e6)
    cv: float = Field(gt=0, le=100, description="Standard deviation of the gaps over their mean")


class DeterministicArrivals(Config):
    """Equal gaps of 1 / rate_rps."""

    kind: Literal["deterministic"]
    rate_rps: float = auto(_RATE, gt=0, le=1e6)


class DiurnalArrivals(Config):
    """Poisson with a sinusoidal rate: mean * (1 + a * sin(2 pi (t + phase) / period)), a from peak_to_trough."""

    kind: Literal["diurnal"]
    mean_rate_rps: Rate = Field(description="Mean over a period")
    peak_to_trough: float = Field(ge=1, le=1e6, description="Highest over lowest rate")
    period_s: float = Field(default=86_400.0, gt=0, le=1e9, description="Length of a cycle")
    phase_s: float = Field(default=0.0, ge=0, le=1e9, description="Where in the cycle the run starts; 0: mean, rising")


class FlashCrowdArrivals(Config):
    """Poisson at base_rps; from start_s on it rises linearly to peak_rps in ramp_s, holds, and falls back in ramp_s."""

    kind: Literal["flash-crowd"]
    base_rps: Rate = Field(description="Rate before and after")
    peak_rps: Rate = Field(description="Rate at the top")
    start_s: float = Field(ge=0, le=1e9, description="When the rise begins")
    ramp_s: float = Field(default=0.0, ge=0, le=1e9, description="Duration of the rise, and of the fall")
    hold_s: float = Field(gt=0, le=1e9, description="Duration of the top")

    @model_validator(mode="after")
    def _peak_above_base(self) -> FlashCrowdArrivals:
        if self.peak_rps < self.base_rps:
            raise WrongValueError("peak_rps", self.peak_rps, f"must be at least base_rps ({self.base_rps:g})")
        return self


class MmppState(Config):
    """One state of the modulating chain."""

    rate_rps: float = Field(ge=0, le=1e6, description="Poisson rate in this state")
    mean_s: float = Field(gt=0, le=1e9, description="Mean time in this state (exponential)")


class MmppArrivals(Config):
    """Markov-modulated Poisson: exponential stays in the states, in turn, from the first on."""

    kind: Literal["mmpp"]
    states: Annotated[tuple[MmppState, ...], Field(strict=False)] = Field(
        min_length=2, description="The states, in turn"
    )

    @model_validator(mode="after")
    def _some_rate(self) -> MmppArrivals:
        if not any(state.rate_rps > 0 for state in self.states):
            raise WrongValueError(
                "states", [state.rate_rps for state in self.states], "at least one rate_rps must be above 0"
            )
        return self


Arrivals = Annotated[
    PoissonArrivals | GammaArrivals | DeterministicArrivals | DiurnalArrivals | FlashCrowdArrivals | MmppArrivals,
    Field(discriminator="kind"),
    kinds("poisson", "gamma", "deterministic", "diurnal", "flash-crowd", "mmpp"),
]
"""`kind` selects the class."""


def peak_rate_rps(arrivals: Arrivals) -> float:
    """The highest rate that the process ever has: an upper bound of its mean."""
    if isinstance(arrivals, DiurnalArrivals):
        return 2 * arrivals.mean_rate_rps
    if isinstance(arrivals, FlashCrowdArrivals):
        return arrivals.peak_rps
    if isinstance(arrivals, MmppArrivals):
        return max(state.rate_rps for state in arrivals.states)
    return arrivals.rate_rps
