"""Replaces every open default by a concrete value, once all sections are known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simlora.scenario.adapters import AdaptersConfig, ClassPopularity, ExplicitPopularity
from simlora.scenario.arrivals import DeterministicArrivals, GammaArrivals, PoissonArrivals
from simlora.scenario.base import Config, WrongValueError

if TYPE_CHECKING:
    from simlora.scenario.root import Scenario

DEFAULT_RATE_RPS = 1.0
DEFAULT_RANK = 16
_RATE_TOLERANCE = 1e-3
"""How far a given arrival rate may be from the sum of explicit rates (relative): rounding."""


def resolve_sections(scenario: Scenario) -> dict[str, Config]:
    """The sections whose defaults depend on others, resolved. The scenario's own sections are not modified."""
    adapters = scenario.adapters.filled(count=_count(scenario))
    if "ranks" not in adapters.model_fields_set:
        most = scenario.engine.max_lora_rank or DEFAULT_RANK  # null: an engine that sizes itself for the adapters
        adapters = adapters.model_copy(update={"ranks": {min(DEFAULT_RANK, most): 1.0}})
    if adapters.count == 0:  # no adapter can be asked for
        adapters = adapters.model_copy(update={"base_fraction": 1.0})
    return {
        "engine": scenario.engine.resolved(scenario),
        "adapters": adapters,
        "workload": _workload(scenario, adapters),
        "cost": scenario.cost.filled(gpu_hour_usd=scenario.gpu_spec.price_hour_usd),
    }


def _count(scenario: Scenario) -> int:
    popularity = scenario.adapters.popularity
    if not scenario.engine.enable_lora:
        return 0
    if isinstance(popularity, ExplicitPopularity):
        return len(popularity.rates_rps)
    if isinstance(popularity, ClassPopularity):
        return sum(item.count for item in popularity.classes)
    return 1


def _workload(scenario: Scenario, adapters: AdaptersConfig) -> Any:
    arrivals, popularity = scenario.workload.arrivals, adapters.popularity
    if not isinstance(arrivals, (PoissonArrivals, GammaArrivals, DeterministicArrivals)):
        return scenario.workload
    rate = DEFAULT_RATE_RPS
    if isinstance(popularity, ExplicitPopularity) and adapters.base_fraction < 1:
        rate = sum(popularity.rates_rps) / (1 - adapters.base_fraction)
        if arrivals.rate_rps is not None and abs(arrivals.rate_rps / rate - 1) > _RATE_TOLERANCE:
            raise WrongValueError(
                "workload.arrivals.rate_rps",
                arrivals.rate_rps,
                f"must be left out or equal the sum of adapters.popularity.rates_rps over 1 - base_fraction ({rate:g})",
            )
    return scenario.workload.model_copy(update={"arrivals": arrivals.filled(rate_rps=rate)})
