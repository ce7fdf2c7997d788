"""The latency model of any engine."""

from __future__ import annotations

from simlora.latency.calibration import Calibration
from simlora.latency.engine_latency import EngineLatency
from simlora.latency.family_latency import FamilyLatency
from simlora.latency.inputs import EngineSettings
from simlora.latency.store import needs_families
from simlora.scenario.gpu import GpuSpec
from simlora.scenario.lora_modules import ALL_LINEAR
from simlora.scenario.model import ModelSpec


def step_latency(
    model: ModelSpec,
    gpu: GpuSpec,
    engine: EngineSettings,
    calibration: Calibration,
    step_scale: float = 1.0,
    slot_modules: tuple[str, ...] | None = None,
    adapter_modules: tuple[str, ...] = ALL_LINEAR,
    disk_bytes_per_s: float | None = None,
) -> EngineLatency:
    """Prices steps and loads of one engine. Arguments as in EngineLatency.

    Raises ConfigError where the calibration lacks terms that the engine needs (choose_calibration adds them).
    """
    kind = FamilyLatency if needs_families(engine) else EngineLatency
    return kind(model, gpu, engine, calibration, step_scale, slot_modules, adapter_modules, disk_bytes_per_s)
