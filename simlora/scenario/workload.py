"""The `workload` key: a synthetic stream of requests, or a trace to replay.

Synthetic: arrivals (when requests come), prompt_tokens and output_tokens (lengths), for duration_s or num_requests.
Trace: trace{path, format, ...} with scale_rate and limit; arrivals, prompt_tokens, output_tokens and num_requests are
null then, and duration_s keeps the requests of the first duration_s seconds (after scaling).
Exactly one of `trace` and `arrivals` is not null once loaded. Rates are requests per second, times seconds from the
start of the run, lengths tokens.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from simlora.scenario.base import Config, WrongValueError, auto, kinds
from simlora.scenario.trace_formats import TRACE_FORMATS

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


def _known_format(value: Any) -> Any:
    names = ["auto", *TRACE_FORMATS]
    if value not in names:
        raise WrongValueError("", value, f"must be one of: {', '.join(names[:-1])} or {names[-1]}")
    return value


class Trace(Config):
    """A recorded stream of requests."""

    path: str = Field(
        min_length=1, description="File, or folder of a recorded run; a relative path starts at the scenario file"
    )
    format: Annotated[str, BeforeValidator(_known_format)] = Field(
        default="auto",
        description="Layout of the file; auto: told from its header",
        json_schema_extra=lambda schema: schema.update(enum=["auto", *TRACE_FORMATS]),
    )
    adapter_column: str | None = Field(
        default=None,
        min_length=1,
        description="Column that names each request's adapter; null: the format's own, if any",
    )
    adapter_rule: Literal["sample", "hash", "round-robin"] = Field(
        default="sample",
        description="How requests without an adapter get one: drawn by adapters.popularity, by hash, or in turn",
    )
    unit: Literal["s", "ms", "us", "ns"] | None = Field(
        default=None, description="Unit of the time stamps; null: the format's own"
    )
    jitter: bool = Field(
        default=False, description="Spread time stamps over the clock's tick (Mooncake's are quantised to 3 s)"
    )
    failures: Literal["drop", "error"] | None = Field(
        default=None,
        description="Rows without output tokens; null: dropped where the format records failures, else an error",
    )


class Prefix(Config):
    """Which prompts begin alike, for prefix caching."""

    kind: Literal["none", "share", "trace"] = Field(
        default="none",
        description="none; share: a fixed part of every prompt is common to its adapter; trace: the trace's hash ids",
    )
    fraction: float | None = Field(default=None, ge=0, le=1, description="share: part of each prompt that is common")

    @model_validator(mode="after")
    def _fraction_with_share(self) -> Prefix:
        if (self.kind == "share") != (self.fraction is not None):
            allowed = "required with kind: share" if self.kind == "share" else f"only with kind: share, not {self.kind}"
            raise WrongValueError("fraction", self.fraction, allowed)
        return self


DEFAULT_DURATION_S = 600.0
_SYNTHETIC: dict[str, Any] = {
    "arrivals": PoissonArrivals(kind="poisson"),
    "prompt_tokens": LognormalLengths(kind="lognormal", median=150.0, sigma=0.9, max=4000),
    "output_tokens": LognormalLengths(kind="lognormal", median=120.0, sigma=0.8, max=1500),
}
"""Chat-like lengths; defaults of a synthetic workload."""


class WorkloadConfig(Config):
    """What clients send."""

    arrivals: Arrivals | None = Field(
        default=None, description="When requests arrive; null: Poisson, or the trace's times"
    )
    prompt_tokens: Lengths | None = Field(
        default=None, description="Prompt lengths; null: lognormal, median 150, sigma 0.9, at most 4,000"
    )
    output_tokens: Lengths | None = Field(
        default=None, description="Output lengths; null: lognormal, median 120, sigma 0.8, at most 1,500"
    )
    duration_s: float | None = Field(
        default=None, gt=0, le=1e8, description="Requests arrive for this long; null: 600, or the whole trace"
    )
    num_requests: int | None = Field(
        default=None, ge=1, le=100_000_000, description="Number of requests, instead of duration_s"
    )
    trace: Trace | None = Field(default=None, description="Replay a trace instead of a synthetic workload")
    scale_rate: float | None = Field(
        default=None, gt=0, le=1e6, description="Multiplies the trace's request rate; null: 1"
    )
    limit: int | None = Field(default=None, ge=1, description="Keep this many requests of the trace; null: all")
    prefix: Prefix = Field(default=Prefix(), description="Common prefixes of prompts")
    warmup_s: float = Field(default=0.0, ge=0, le=1e8, description="Requests that arrive before leave the percentiles")
    end: Literal["drain", "cut"] = Field(
        default="drain", description="drain: wait until all are served; cut: stop when arrivals end"
    )

    @model_validator(mode="before")
    @classmethod
    def _one_source(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        given = {key for key, value in data.items() if value is not None}
        for key in ("arrivals", "prompt_tokens", "output_tokens", "num_requests") if "trace" in given else ():
            if key in given:
                raise WrongValueError(key, data[key], "not together with trace, which says it itself")
        for key in ("scale_rate", "limit") if "trace" not in given else ():
            if key in given:
                raise WrongValueError(key, data[key], "only together with trace")
        if {"duration_s", "num_requests"} <= given:
            raise WrongValueError("num_requests", data["num_requests"], "give duration_s or num_requests, not both")
        return data

    @model_validator(mode="after")
    def _fill(self) -> WorkloadConfig:
        defaults: dict[str, Any] = {"scale_rate": 1.0} if self.trace else dict(_SYNTHETIC)
        if not self.trace and self.num_requests is None:
            defaults["duration_s"] = DEFAULT_DURATION_S
        for key, value in defaults.items():
            if getattr(self, key) is None:
                self.__dict__[key] = value  # frozen from here on
        if self.prefix.kind == "trace" and (self.trace is None or self.trace.format != "mooncake"):
            raise WrongValueError("prefix.kind", "trace", "needs a trace with hash ids: trace.format mooncake")
        if self.duration_s is not None and self.warmup_s >= self.duration_s:
            raise WrongValueError("warmup_s", self.warmup_s, f"must be below duration_s ({self.duration_s:g})")
        return self
