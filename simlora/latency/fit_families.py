"""What segmented LoRA kernels cost by family, for engines whose kernels the LoRA kernel term does not describe.

seconds = linears * linear_s + tiles * tile_s + weight bytes / bytes_per_s + padded operations / flops
          + activation bytes / activation_bytes_per_s

A tile holds up to `rows` tokens of one adapter; its weights are read again for each tile, and a tile that is not full
is multiplied all the same. Part of a campaign's report, not of a calibration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.optimize import nnls

from simlora.latency.fit_core import held_out_mask, held_out_rms, relative_rms, seconds
from simlora.latency.fit_samples import Row, of_op
from simlora.latency.shapes import lora_linears
from simlora.scenario.lora_modules import ALL_LINEAR
from simlora.scenario.model_spec import ModelSpec

ELEMENT_BYTES = 2
COSTS = ("linear_s", "tile_s", "bytes_per_s", "flops", "activation_bytes_per_s")


def _sglang_rows(tokens: int) -> int:
    return 128 if tokens >= 256 else 32 if tokens >= 64 else 16


def _simlora_rows(tokens: int) -> int:
    return 64 if tokens >= 512 else 16


def _one_row(tokens: int) -> int:
    return 1


ROWS = {"sglang": _sglang_rows, "simlora": _simlora_rows, "bgmv": _one_row}
"""Family -> tokens of a full tile by tokens of the step."""


def fit_families(rows: Sequence[Row], models: Mapping[str, ModelSpec], seed: int) -> dict[str, dict[str, Any]]:
    """Family -> costs (null where nothing of the kind shows in its times), errors and number of samples."""
    found = {}
    for family in ROWS:
        steps = of_op(rows, "lora_step", family=family)
        if len(steps) > 2 * len(COSTS):
            found[family] = _fit(steps, family, models, seed)
    return found


def _fit(rows: Sequence[Row], family: str, models: Mapping[str, ModelSpec], seed: int) -> dict[str, Any]:
    work = np.array([_work(row, models[row["model"]], family) for row in rows])
    measured = seconds(rows)
    mask = held_out_mask(len(rows), seed, family)
    unit = np.abs(work).max(axis=0)
    scaled, _ = nnls(work[~mask] / unit / measured[~mask, None], np.ones(int((~mask).sum())))
    costs = scaled / unit
    fitted = work @ costs
    return {
        **{name: _published(name, cost) for name, cost in zip(COSTS, costs.tolist(), strict=True)},
        "samples": len(rows),
        "fit_error": relative_rms(fitted[~mask], measured[~mask]),
        "held_out_error": held_out_rms(fitted, measured, mask),
    }


def _published(name: str, cost: float) -> float | None:
    if name.endswith("_s") and not name.endswith("per_s"):
        return cost
    return 1.0 / cost if cost > 0.0 else None


def _work(row: Row, model: ModelSpec, family: str) -> tuple[float, ...]:
    """(linears, tiles, bytes of weights over tiles, operations on full tiles, bytes of activations) of a step."""
    linears = lora_linears(model, row["tp"], ALL_LINEAR)
    layers, tokens, adapters = row["layers"], row["lora_tokens"], row["adapters"]
    tile_rows = ROWS[family](row["tokens"])
    tiles = _tiles(tokens, adapters, tile_rows)
    per_rank = sum(linear.inputs * len(linear.outputs) + sum(linear.outputs) for linear in linears)
    per_token = sum(linear.inputs + 2 * sum(linear.outputs) for linear in linears)
    rank = row["sum_of_token_ranks"] / max(tokens, 1)
    return (
        float(layers * len(linears)),
        layers * len(linears) * tiles,
        layers * tiles * rank * per_rank * ELEMENT_BYTES,
        layers * tiles * tile_rows * rank * per_rank * 2.0,
        float(layers * tokens * per_token * ELEMENT_BYTES),
    )


def _tiles(tokens: int, adapters: int, rows: int) -> float:
    """Tiles over all adapters when the tokens are spread evenly."""
    each, more = divmod(tokens, max(adapters, 1))
    return float((adapters - more) * -(-each // rows) + more * -(-(each + 1) // rows))
