"""Engine start-up time by slots, from the start-up times that recordings state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simlora.latency.calibration import Calibration
from simlora.runs.recorded import RecordedRun
from simlora.validate.fit_groups import with_terms

ERROR_S = 10.0
"""Start-up times of one configuration scatter by that much: files, caches, compilation."""
WIDTHS_S = np.array([60.0, 60.0, 2.0])
"""Prior on base_s, lora_s and slot_s around the base calibration's values (standard deviations)."""
NAMES = ("base_s", "lora_s", "slot_s")


def fit_start(calibration: Calibration, runs: Sequence[RecordedRun]) -> Calibration:
    """base_s + (lora_s + slot_s * max_loras with LoRA), not below zero; as it was where no run states its start."""
    known = [run for run in runs if run.run.start_s is not None]
    if not known:
        return calibration
    old = calibration.terms.engine_start.parameters
    values = np.array([getattr(old, name) for name in NAMES])
    matrix, target = [], []
    for run in known:
        lora = bool(run.run.engine.get("enable_lora"))
        matrix.append([1.0, float(lora), float(run.run.engine.get("max_loras", 1)) if lora else 0.0])
        target.append(float(run.run.start_s or 0.0))
    rows = np.vstack([np.array(matrix) / ERROR_S, np.diag(1.0 / WIDTHS_S)])
    goal = np.concatenate([np.array(target) / ERROR_S, values / WIDTHS_S])
    found = np.maximum(np.linalg.lstsq(rows, goal, rcond=None)[0], 0.0)
    slots = [row[2] for row in matrix]
    change = {
        "parameters": {name: round(float(value), 3) for name, value in zip(NAMES, found, strict=True)},
        "basis": "measured",
        "measured": {"max_loras": (min(slots), max(slots))} if any(slots) else {},
        "note": f"Start-up times of {len(known)} recorded runs.",
    }
    return with_terms(calibration, {"engine_start": change})
