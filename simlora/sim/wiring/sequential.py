"""The parts of a sequential replica."""

from __future__ import annotations

from simlora.engines.baselines.sequential import SequentialEngine
from simlora.sim.inputs import Inputs
from simlora.sim.wiring.baselines import adapter_slots, baseline_limits


def make_engine(inputs: Inputs) -> SequentialEngine:
    """One replica."""
    return SequentialEngine(baseline_limits(inputs), adapter_slots(inputs))
