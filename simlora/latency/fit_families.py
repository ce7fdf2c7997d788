"""A physical cost of every LoRA kernel family measured, for engines that the LoRA kernel term does not describe.

seconds = linears * linear_s + hypot(bytes / bytes_per_s, operations / flops) + tiles * tile_s, with weights at the
adapters' own ranks (at the slots' rank for padded kernels). Part of a campaign's report, not of a calibration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from simlora.latency.fit_core import Array, fit_positive, held_out_mask, relative_rms, seconds
from simlora.latency.fit_samples import Row, of_op
from simlora.latency.shapes import lora_linears
from simlora.scenario.lora_modules import ALL_LINEAR
from simlora.scenario.model_spec import ModelSpec

PADDED = ("vllm", "padded")
ELEMENT_BYTES = 2
TILE_ROWS = 16
START = {"linear_s": 1e-5, "bytes_per_s": 2e12, "flops": 1e14, "tile_s": 1e-8}


def fit_families(rows: Sequence[Row], models: Mapping[str, ModelSpec], seed: int) -> dict[str, dict[str, float]]:
    """Family -> parameters, errors and number of samples."""
    steps = of_op(rows, "lora_step")
    families = sorted({row["family"] for row in steps})
    found = {family: _fit([r for r in steps if r["family"] == family], family, models, seed) for family in families}
    return {family: values for family, values in found.items() if values}


def _fit(rows: Sequence[Row], family: str, models: Mapping[str, ModelSpec], seed: int) -> dict[str, Any]:
    if len(rows) <= len(START) + 1:
        return {}
    work = np.array([_work(row, models[row["model"]], family in PADDED) for row in rows])
    measured = seconds(rows)
    mask = held_out_mask(len(rows), seed, family)
    values = fit_positive(lambda v: _predict(work[~mask], v), measured[~mask], START)
    fitted = _predict(work, values)
    return {
        **values,
        "samples": len(rows),
        "fit_error": relative_rms(fitted[~mask], measured[~mask]),
        "held_out_error": relative_rms(fitted[mask], measured[mask]),
    }


def _predict(work: Array, values: Mapping[str, float]) -> Array:
    linears, moved, operations, tiles = work.T
    memory_s, compute_s = moved / values["bytes_per_s"], operations / values["flops"]
    return np.asarray(linears * values["linear_s"] + np.hypot(memory_s, compute_s) + tiles * values["tile_s"])


def _work(row: Row, model: ModelSpec, padded: bool) -> tuple[float, float, float, float]:
    """(linears, bytes, floating-point operations, tiles of 16 tokens of one adapter and linear) of a step."""
    linears = lora_linears(model, row["tp"], ALL_LINEAR)
    layers, tokens, adapters = row["layers"], row["lora_tokens"], row["adapters"]
    per_rank = sum(linear.inputs * len(linear.outputs) + sum(linear.outputs) for linear in linears)
    per_token = sum(linear.inputs + 2 * sum(linear.outputs) for linear in linears)
    ranks = adapters * row["slot_rank"] if padded else row["sum_of_ranks"]
    token_ranks = tokens * row["slot_rank"] if padded else row["sum_of_token_ranks"]
    moved = layers * ELEMENT_BYTES * (ranks * per_rank + tokens * per_token)
    tiles = layers * len(linears) * (adapters + max(tokens - adapters, 0) / TILE_ROWS)
    return float(layers * len(linears)), float(moved), 2.0 * layers * per_rank * token_ranks, tiles
