"""The parts of a merged-swap replica."""

from __future__ import annotations

from simlora.engines.baselines.merged_swap import MergedSwapEngine
from simlora.scenario.engines.merged_swap import MergedSwapConfig
from simlora.sim.inputs import Inputs
from simlora.sim.wiring.baselines import adapter_slots, baseline_limits


def make_engine(inputs: Inputs) -> MergedSwapEngine:
    """One replica. It starts with plain weights."""
    engine = inputs.scenario.engine
    assert isinstance(engine, MergedSwapConfig)
    return MergedSwapEngine(baseline_limits(inputs, engine.switch_after), adapter_slots(inputs), inputs.latency.merge_s)
