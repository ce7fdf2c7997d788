"""The parts of a grouped replica."""

from __future__ import annotations

from simlora.engines.baselines.grouped import GroupedEngine
from simlora.scenario.engines.grouped import GroupedConfig
from simlora.sim.inputs import Inputs
from simlora.sim.wiring.baselines import adapter_slots, baseline_limits


def make_engine(inputs: Inputs) -> GroupedEngine:
    """One replica."""
    engine = inputs.scenario.engine
    assert isinstance(engine, GroupedConfig)
    return GroupedEngine(baseline_limits(inputs, engine.switch_after), adapter_slots(inputs))
