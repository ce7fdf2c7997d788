"""Whether a scenario's replica starts, and why not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simlora.engines.registry import engine_spec
from simlora.errors import ConfigError
from simlora.memory.ledger import Ledger
from simlora.memory.shortage import Shortage
from simlora.scenario.load import changed
from simlora.scenario.root import Scenario


def build_ledger(scenario: Scenario) -> Ledger:
    """The ledger of one GPU of the scenario's replicas, whether or not it fits."""
    return engine_spec(scenario.engine.kind).ledger(scenario)


def require_fit(scenario: Scenario) -> Ledger:
    """The ledger of a replica that starts.

    Raises:
        ConfigError: it does not; the message names what binds and the largest value that fits.
    """
    ledger = build_ledger(scenario)
    problem = scenario_shortage(scenario, ledger)
    if problem is not None:
        raise ConfigError(scenario.source, problem.key, problem.value, problem.message)
    return ledger


def scenario_shortage(scenario: Scenario, ledger: Ledger) -> Shortage | None:
    """What keeps the scenario's replicas from starting; None if they start. ledger: of that scenario."""
    if ledger.fits:
        return None
    found = engine_spec(scenario.engine.kind).shortages(scenario, ledger)
    return next(problem for problem in found if problem is not None)


def variant(scenario: Scenario, changes: Mapping[str, Any]) -> Ledger | None:
    """The ledger with other values, defaults resolved anew; None if the scenario is refused."""
    try:
        return build_ledger(changed(scenario, changes))
    except ConfigError:
        return None


def fits_with(scenario: Scenario, changes: Mapping[str, Any]) -> bool:
    """Whether the scenario would start with other values."""
    ledger = variant(scenario, changes)
    return ledger is not None and ledger.fits
