"""The `workload` key: a synthetic stream of requests, or a trace to replay.

Synthetic: arrivals (arrivals.py), prompt_tokens and output_tokens (lengths.py), for duration_s or num_requests.
Trace: trace{path, format, ...} with scale_rate and limit; arrivals, prompt_tokens, output_tokens and num_requests are
null then, and duration_s keeps the requests of the first duration_s seconds (after scaling).
Exactly one of `trace` and `arrivals` is not null once loaded.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from simlora.scenario.arrivals import Arrivals, PoissonArrivals
from simlora.scenario.base import Config, WrongValueError
from simlora.scenario.lengths import Lengths, LognormalLengths


class Trace(Config):
    """A recorded stream of requests."""

    path: str = Field(
        min_length=1, description="File, or folder of a recorded run; a relative path starts at the scenario file"
    )
    format: Literal["auto", "azure", "burstgpt", "mooncake", "vllm-bench", "simlora-run", "csv"] = Field(
        default="auto", description="Layout of the file; auto: told from its header"
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
