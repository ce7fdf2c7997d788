"""Fits the LoRA kernel term to whole steps of vLLM's kernels, or of the same algorithm where those are missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import nnls

from simlora.latency.calibration import LoraKernelParameters
from simlora.latency.lora_kernels import LoraKernels
from simlora.latency.shapes import lora_linears
from simlora.scenario.lora_modules import ALL_LINEAR
from simlora.scenario.model import ModelSpec

from .core import (
    Array,
    TermFit,
    held_out_mask,
    held_out_rms,
    points,
    relative_rms,
    seconds,
    spans,
)
from .samples import Row, of_op

FAMILIES = ("vllm", "padded")
"""In order of preference. vllm's samples leave out the zeroing of the shrink buffers, padded's hold it."""
LINEARS = 4
FEWEST_STEPS = 12
ZERO, FACTOR = "zero_s", "surplus_factor"
RATES = ("row_bytes_per_s",)
SURPLUS = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0)
"""Factors tried; a finer step changes fitted times by less than their error."""
Models = Mapping[str, ModelSpec]


def fit_lora(rows: Sequence[Row], models: Models, template: LoraKernelParameters, seed: int) -> TermFit | None:
    """Non-negative least squares on relative errors; None where neither family has enough samples."""
    family, steps = _family(rows)
    if not family:
        return None
    zero_s = _zero_s(of_op(rows, "lora_zero"), template)
    own_zero = 0.0 if family == "vllm" else zero_s
    measured = seconds(steps) - own_zero * LINEARS * np.array([row["layers"] for row in steps], dtype=float)
    mask = held_out_mask(len(steps), seed, "lora_kernels")
    seen = [row for row, out in zip(steps, mask.tolist(), strict=True) if not out]
    parameters = _solve(seen, measured[~mask], models, template)
    fitted: Array = np.array([_step_s(row, models, parameters) for row in steps])
    return TermFit(
        term="lora_kernels",
        parameters=parameters.model_copy(update={ZERO: zero_s}),
        measured=_ranges(steps, models),
        fit_error=relative_rms(fitted[~mask], measured[~mask]),
        held_out_error=held_out_rms(fitted, measured, mask),
        note=_note(family, steps),
        axis="tokens",
        points=points(steps, fitted + (seconds(steps) - measured), mask, lambda r: r["tokens"], _series),
        also={},
    )


def _solve(
    rows: Sequence[Row], measured: Array, models: Models, template: LoraKernelParameters
) -> LoraKernelParameters:
    """Everything but the surplus factor is linear, its rates in their inverse; the factor is the best of SURPLUS."""
    nothing = template.model_copy(update=dict.fromkeys(_linear(template), 0.0) | dict.fromkeys(RATES))
    tried = []
    for factor in SURPLUS:
        base = nothing.model_copy(update={FACTOR: factor})
        names = [name for name in _linear(template) if name != ZERO]
        units = [base.model_copy(update={name: 1.0}) for name in (*names, *RATES)]
        matrix = np.array([[_step_s(row, models, unit) for unit in units] for row in rows])
        scale = np.maximum(matrix.max(axis=0), 1e-300)
        scaled, residual = nnls(matrix / scale / measured[:, None], np.ones(len(rows)))
        costs = (scaled / scale).tolist()
        rates = {
            name: 1.0 / cost if cost > 0.0 else None for name, cost in zip(RATES, costs[len(names) :], strict=True)
        }
        tried.append((residual, base.model_copy(update={**dict(zip(names, costs, strict=False)), **rates})))
    return min(tried, key=lambda pair: pair[0])[1]


def _linear(template: LoraKernelParameters) -> list[str]:
    """Parameters that are seconds of something counted."""
    return [name for name in type(template).model_fields if name.endswith("_s") and name not in RATES]


def _family(rows: Sequence[Row]) -> tuple[str, list[Row]]:
    for family in FAMILIES:
        steps = of_op(rows, "lora_step", family=family)
        if len(steps) >= FEWEST_STEPS:
            return family, steps
    return "", []


def _zero_s(rows: Sequence[Row], template: LoraKernelParameters) -> float:
    """Median over the steps measured; the template's where there are none."""
    each = [row["p50"] / (row["layers"] * LINEARS) for row in rows]
    return float(np.median(each)) if each else template.zero_s


def _step_s(row: Row, models: Models, parameters: LoraKernelParameters) -> float:
    """The term's own price of a step."""
    linears = lora_linears(models[row["model"]], row["tp"], ALL_LINEAR)
    kernels = LoraKernels(parameters, linears, row["layers"], None, (0, 0), row["slots"], False)
    return kernels.step_s(row["tokens"], row["lora_tokens"], row["adapters"], row["slot_rank"], 0)


def _ranges(steps: Sequence[Row], models: Models) -> dict[str, tuple[float, float]]:
    sized = [{**row, "hidden_size": models[row["model"]].hidden_size} for row in steps]
    return spans(
        sized, tokens="tokens", adapters="adapters", max_loras="slots", max_lora_rank="slot_rank",
        hidden_size="hidden_size", tensor_parallel_size="tp",
    )  # fmt: skip


def _note(family: str, steps: Sequence[Row]) -> str:
    what = "vLLM's own kernels" if family == "vllm" else "this project's kernels of vLLM's padded algorithm"
    return f"{what}, {len(steps)} whole steps in CUDA graphs, weights of every layer distinct"


def _series(row: Row) -> str:
    return f"{row['slots']} x {row['slot_rank']}, {row['adapters']} adapters, {row['model']} tp {row['tp']}"
