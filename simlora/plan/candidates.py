"""Changes worth trying on an engine, by the request-seconds that they could save.

Only keys of the scenario's own engine are proposed. A share is that of the summary's bottleneck.shares.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from simlora.engines.registry import engine_spec
from simlora.engines.spec import Changes, Option, Shares
from simlora.scenario.root import Scenario

NOTABLE_SHARE = 0.05
"""A share of the request-seconds below which no change is tried for it."""
IDLE_S = 300
"""Silence after which a deployment is proposed to sleep."""


def candidates(scenario: Scenario, summary: dict[str, Any]) -> Iterator[Changes]:
    """Changes, the most promising first. scenario: as the user wrote it."""
    shares = {name: value or 0.0 for name, value in summary["bottleneck"]["shares"].items()}
    if scenario.cluster.topology == "dedicated":
        options = [*_dedicated(scenario)]
    else:
        options = [*engine_spec(scenario.engine.kind).options(scenario, shares), *_replicas(scenario, shares, summary)]
    for weight, changes in sorted(options, key=lambda option: -option[0]):
        if weight >= NOTABLE_SHARE and any(new != value_of(scenario, key) for key, new in changes.items()):
            yield changes


def value_of(scenario: Scenario, key: str) -> Any:
    """The scenario's value at a key path; None within a section that is left out."""
    target: Any = scenario
    for part in key.split("."):
        target = None if target is None else getattr(target, part)
    return target


def _replicas(scenario: Scenario, share: Shares, summary: dict[str, Any]) -> Iterator[Option]:
    replicas = scenario.cluster.replicas
    if (summary["slo"]["attainment"] or 0.0) < scenario.slo.attainment:
        yield 1.0, {"cluster.replicas": replicas + 1}
        return
    waiting = sum(value for name, value in share.items() if name.startswith("queue"))
    yield waiting, {"cluster.replicas": replicas + 1}
    if replicas > 1:
        yield 1.0, {"cluster.replicas": replicas - 1}


def _dedicated(scenario: Scenario) -> Iterator[Option]:
    """Deployments that give their GPUs back between requests."""
    if scenario.cluster.dedicated.scale_to_zero_s is None:
        yield 1.0, {"cluster.dedicated.scale_to_zero_s": IDLE_S}
