"""The parts of a lorax replica."""

from __future__ import annotations

from simlora.engines.base import Engine
from simlora.errors import ConfigError
from simlora.sim.inputs import Inputs


def make_engine(inputs: Inputs) -> Engine:
    """One replica."""
    raise ConfigError(inputs.scenario.source, "engine.kind", inputs.scenario.engine.kind, "not built yet")
