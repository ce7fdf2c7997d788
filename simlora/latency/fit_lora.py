"""Fits the LoRA kernel term to whole steps of vLLM's kernels, or of the same algorithm where those are missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import nnls

from simlora.latency.calibration import LoraKernelParameters
from simlora.latency.fit_core import Array, TermFit, held_out_mask, held_out_rms, points, relative_rms, seconds, spans
from simlora.latency.fit_samples import Row, of_op
from simlora.latency.lora_kernels import LoraKernels
from simlora.latency.shapes import lora_linears
from simlora.scenario.lora_modules import ALL_LINEAR
from simlora.scenario.model_spec import ModelSpec

FAMILIES = ("vllm", "padded")
"""In order of preference. vllm's samples leave out the zeroing of the shrink buffers, padded's hold it."""
LINEARS = 4
ZERO = "zero_s"
Models = Mapping[str, ModelSpec]


def fit_lora(rows: Sequence[Row], models: Models, template: LoraKernelParameters, seed: int) -> TermFit | None:
    """Non-negative least squares on relative errors; None where neither family has enough samples."""
    names = [name for name in type(template).model_fields if name != ZERO]
    family, steps = _family(rows, len(names))
    if not family:
        return None
    zero_s = _zero_s(of_op(rows, "lora_zero"), template)
    own_zero = 0.0 if family == "vllm" else zero_s
    measured = seconds(steps) - own_zero * LINEARS * np.array([row["layers"] for row in steps], dtype=float)
    matrix = np.array([[_step_s(row, models, template, {name: 1.0}) for name in names] for row in steps])
    mask = held_out_mask(len(steps), seed, "lora_kernels")
    found, _ = nnls(matrix[~mask] / measured[~mask, None], np.ones(int((~mask).sum())))
    values = dict(zip(names, found.tolist(), strict=True))
    fitted: Array = np.array([_step_s(row, models, template, values) for row in steps])
    return TermFit(
        term="lora_kernels",
        parameters=template.model_copy(update={**values, ZERO: zero_s}),
        measured=_ranges(steps, models),
        fit_error=relative_rms(fitted[~mask], measured[~mask]),
        held_out_error=held_out_rms(fitted, measured, mask),
        note=_note(family, steps),
        axis="tokens",
        points=points(steps, fitted + (seconds(steps) - measured), mask, lambda r: r["tokens"], _series),
        also={},
    )


def _family(rows: Sequence[Row], fewest: int) -> tuple[str, list[Row]]:
    for family in FAMILIES:
        steps = of_op(rows, "lora_step", family=family)
        if len(steps) > fewest:
            return family, steps
    return "", []


def _zero_s(rows: Sequence[Row], template: LoraKernelParameters) -> float:
    """Median over the steps measured; the template's where there are none."""
    each = [row["p50"] / (row["layers"] * LINEARS) for row in rows]
    return float(np.median(each)) if each else template.zero_s


def _step_s(row: Row, models: Models, template: LoraKernelParameters, values: Mapping[str, float]) -> float:
    """The term's own price of a step with the given parameters, all others zero."""
    zeroes: dict[str, float] = dict.fromkeys(type(template).model_fields, 0.0)
    parameters = template.model_copy(update={**zeroes, **values})
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
