"""The calibration and the latency model of a scenario's engine."""

from __future__ import annotations

from simlora.engines.registry import engine_spec
from simlora.latency.calibration import Calibration
from simlora.latency.engine_latency import EngineLatency
from simlora.latency.family_latency import step_latency
from simlora.latency.store import choose_calibration
from simlora.scenario.root import Scenario


def scenario_calibration(scenario: Scenario) -> Calibration:
    """The calibration that the scenario names, or the nearest, carried over to its GPU and engine.

    Raises:
        ConfigError: see choose_calibration.
    """
    profile = engine_spec(scenario.engine.kind).profile(scenario.engine)
    return choose_calibration(scenario.gpu_spec, scenario.engine, scenario.calibration, profile.families, profile.start)


def scenario_latency(scenario: Scenario, step_scale: float = 1.0) -> EngineLatency:
    """Prices steps and loads of the scenario's engine. step_scale multiplies every step time.

    Raises:
        ConfigError: see choose_calibration.
    """
    disk_gib_s = scenario.storage.disk_gib_s
    return step_latency(
        scenario.model_spec,
        scenario.gpu_spec,
        scenario.engine,
        scenario_calibration(scenario),
        engine_spec(scenario.engine.kind).profile(scenario.engine),
        step_scale,
        scenario.slot_modules,
        scenario.adapter_modules,
        None if disk_gib_s is None else disk_gib_s * 2**30,
    )
