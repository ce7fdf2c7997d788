"""One workload on several engines: the same requests, played by each, and what sets the engines apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isclose
from typing import Any

from simlora.engines.inputs import Inputs
from simlora.errors import ConfigError
from simlora.plan.reasons import reasons
from simlora.plan.variants import DEDICATED, variant
from simlora.results.gpus import usd_per_month
from simlora.results.summary import summarize
from simlora.scenario.root import Scenario
from simlora.sim.build import build_inputs
from simlora.sim.simulate import simulate
from simlora.workload.adapter_table import build_adapters
from simlora.workload.requests import build_requests


@dataclass(frozen=True)
class Played:
    """One engine's run."""

    engine: str
    summary: dict[str, Any]
    scenario: Scenario
    kv_tokens: int
    """Tokens of KV memory in one replica."""
    reasons: tuple[str, ...] = ()
    """What explains its figures, most telling first."""

    @property
    def usd_per_month(self) -> float | None:
        return usd_per_month(self.summary["cost"])

    @property
    def meets_slo(self) -> bool:
        attainment = self.summary["slo"]["attainment"]
        return attainment is not None and attainment >= self.scenario.slo.attainment


@dataclass(frozen=True)
class Comparison:
    """All engines that were asked for."""

    scenario: Scenario
    requests: int
    played: tuple[Played, ...]
    unsupported: dict[str, str]
    """Engine -> why it cannot serve the scenario."""
    asked: tuple[str, ...] = ()
    """All of them, in the order of the request."""

    def cost_ratio(self, played: Played) -> float | None:
        """Its dollars per month over those of dedicated deployments; None if these were not asked for."""
        other = next((p.usd_per_month for p in self.played if p.engine == DEDICATED), None)
        return played.usd_per_month / other if other and played.usd_per_month is not None else None

    def cheapest(self) -> tuple[Played, ...]:
        """All that meet the SLO at the lowest price, the highest attainment first; empty if none meets it."""
        meeting = [p for p in self.played if p.meets_slo]
        lowest = min((p.usd_per_month or 0.0 for p in meeting), default=0.0)
        equal = [p for p in meeting if isclose(p.usd_per_month or 0.0, lowest)]
        return tuple(sorted(equal, key=lambda p: -p.summary["slo"]["attainment"]))

    def best(self) -> Played | None:
        """The first of the cheapest."""
        return next(iter(self.cheapest()), None)


def compare_engines(
    scenario: Scenario, engines: Sequence[str], progress: Callable[[str], None] | None = None, check: bool = False
) -> Comparison:
    """Play the scenario on each engine: common random numbers, since adapters and requests are drawn once.

    Raises:
        ConfigError: an unknown engine, or the scenario is wrong on all of them.
    """
    variants, unsupported = _variants(scenario, engines)
    if not variants:
        first = next(iter(unsupported.values()))
        raise ConfigError(scenario.source, "engine.kind", list(engines), f"none of them serves this: {first}")
    adapters = build_adapters(scenario)
    requests = build_requests(scenario, adapters)
    played: list[Played] = []
    for name, changed in variants.items():
        if progress is not None:
            progress(name)
        try:
            inputs = build_inputs(changed, adapters, requests)
            played.append(_play(name, inputs, check))
        except ConfigError as error:
            unsupported[name] = _plain(error)
    if not played:
        raise ConfigError(scenario.source, "engine.kind", list(engines), "; ".join(unsupported.values()))
    asked = tuple(dict.fromkeys(engines))
    order = {name: unsupported[name] for name in asked if name in unsupported}
    return Comparison(scenario, len(requests), tuple(played), order, asked)


def as_json(comparison: Comparison) -> dict[str, Any]:
    """{engine: summary, or {unsupported: reason}}, in the order of the request."""
    found: dict[str, Any] = {p.engine: {**p.summary, "reasons": list(p.reasons)} for p in comparison.played}
    found |= {name: {"unsupported": reason} for name, reason in comparison.unsupported.items()}
    return {name: found[name] for name in comparison.asked or found}


def _variants(scenario: Scenario, engines: Sequence[str]) -> tuple[dict[str, Scenario], dict[str, str]]:
    found: dict[str, Scenario] = {}
    refused: dict[str, str] = {}
    for name in dict.fromkeys(engines):
        try:
            found[name] = variant(scenario, name)
        except ConfigError as error:
            if error.source == "<arguments>":
                raise
            refused[name] = _plain(error)
    return found, refused


def _play(name: str, inputs: Inputs, check: bool) -> Played:
    summary = summarize(simulate(inputs, check=check))
    scenario, kv_tokens = inputs.dedicated or inputs.scenario, inputs.ledger.usable_kv_tokens
    return Played(name, summary, scenario, kv_tokens, reasons(summary, scenario, kv_tokens))


def _plain(error: ConfigError) -> str:
    """Key, value and what is allowed, without the file."""
    return str(error).removeprefix(f"{error.source}: ")
