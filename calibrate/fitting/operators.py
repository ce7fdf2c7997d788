"""Fits the base operators to steps of a stack of layers, to single GEMMs and to element-wise kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from simlora.latency.calibration import OperatorParameters
from simlora.latency.operators import Operators
from simlora.scenario.model import ModelSpec

from .core import (
    Array,
    TermFit,
    fit_positive,
    held_out_mask,
    held_out_rms,
    points,
    relative_rms,
    seconds,
    spans,
)
from .samples import Row, of_op

ELEMENTWISE = ("norm", "rope", "silu_mul", "sampler")
START = {
    "weight_bytes_per_s": 2e12, "gemm_flops": 3e14, "blend_above_1": 1.0, "layer_s": 3e-5, "gemm_s": 3e-6,
}  # fmt: skip
HUGE = 1e30
"""A rate at which its term vanishes."""
Models = Mapping[str, ModelSpec]


def fit_operators(rows: Sequence[Row], models: Models, template: OperatorParameters, seed: int) -> TermFit | None:
    """None where no steps were measured. Errors are those of whole steps; the note has those of single GEMMs.

    The element-wise rate comes from its own kernels. Steps and GEMMs count alike in sum, whatever their number. A GEMM
    measured by itself has a start and tail of its own; in a step all of them are part of layer_s.
    """
    steps, gemms = of_op(rows, "dense_step", regime="graph"), of_op(rows, "gemm", regime="graph")
    if len(steps) < len(START):
        return None
    activation = _activation_rate(of_op(rows, *ELEMENTWISE), template)
    both = [*steps, *gemms]
    measured = seconds(both)
    mask = np.concatenate([held_out_mask(len(steps), seed, "operators"), held_out_mask(len(gemms), seed, "gemms")])
    weights = np.concatenate([np.ones(len(steps)), np.full(len(gemms), np.sqrt(len(steps) / max(len(gemms), 1)))])
    seen = [row for row, out in zip(both, mask.tolist(), strict=True) if not out]
    found = fit_positive(
        lambda values: _predict(seen, models, template, values, activation), measured[~mask], START, weights[~mask]
    )
    parameters = _parameters(template, found, activation)
    fitted = _predict(both, models, template, found, activation)
    is_step = np.arange(len(both)) < len(steps)
    gemm_error = relative_rms(fitted[~is_step], measured[~is_step])
    return TermFit(
        term="operators",
        parameters=parameters,
        measured=_ranges(steps, models),
        fit_error=relative_rms(fitted[is_step & ~mask], measured[is_step & ~mask]),
        held_out_error=held_out_rms(fitted, measured, is_step & mask),
        note=f"steps of {_names(steps)} in CUDA graphs; {len(gemms)} single GEMMs within {gemm_error:.1%}",
        axis="tokens",
        points=points(both, fitted, mask, lambda r: r["tokens"], _series),
        also={"gemm_s": found["gemm_s"], "gemm_error": gemm_error},
    )


def _activation_rate(rows: Sequence[Row], template: OperatorParameters) -> float:
    """Bytes a second of element-wise kernels beside their fixed time; the template's where none was measured."""
    if len(rows) < 3:
        return template.activation_bytes_per_s
    size = np.array([row["bytes"] for row in rows], dtype=float)
    start = {"rate": template.activation_bytes_per_s, "fixed": 3e-6}
    return fit_positive(lambda v: v["fixed"] + size / v["rate"], seconds(rows), start)["rate"]


def _parameters(template: OperatorParameters, values: Mapping[str, float], activation: float) -> OperatorParameters:
    return template.model_copy(
        update={
            "weight_bytes_per_s": values["weight_bytes_per_s"],
            "gemm_flops": values["gemm_flops"],
            "blend": 1.0 + values["blend_above_1"],
            "layer_s": values["layer_s"],
            "activation_bytes_per_s": activation,
        }
    )


def _predict(
    rows: Sequence[Row], models: Models, template: OperatorParameters, values: Mapping[str, float], activation: float
) -> Array:
    parameters = _parameters(template, values, activation)
    gemm = parameters.model_copy(update={"layer_s": 0.0, "activation_bytes_per_s": HUGE})
    return np.array(
        [
            _step_s(row, models, parameters) if row["op"] == "dense_step" else values["gemm_s"] + gemm_s(row, gemm)
            for row in rows
        ]
    )


def _step_s(row: Row, models: Models, parameters: OperatorParameters) -> float:
    model = replace(models[row["model"]], num_hidden_layers=row["layers"])
    return Operators(parameters, model, row["tp"]).dense_s(row["tokens"], row["rows"])


def gemm_s(row: Row, parameters: OperatorParameters) -> float:
    """A single GEMM without its fixed time, priced as the lm_head of a model without layers."""
    head = replace(_HEAD, hidden_size=row["inputs"], vocab_size=row["outputs"])
    return Operators(parameters, head, 1).dense_s(0, row["tokens"])


_HEAD = ModelSpec(
    name="one linear", hidden_size=1, intermediate_size=1, num_hidden_layers=0, num_attention_heads=1,
    num_key_value_heads=1, head_dim=1, vocab_size=1, tie_word_embeddings=False, max_position_embeddings=1,
)  # fmt: skip


def _ranges(steps: Sequence[Row], models: Models) -> dict[str, Any]:
    sized = [{**row, "hidden_size": models[row["model"]].hidden_size} for row in steps]
    ranges = spans(sized, tokens="tokens", hidden_size="hidden_size", tensor_parallel_size="tp")
    return {**ranges, "num_experts": (0.0, 0.0)}


def _names(rows: Sequence[Row]) -> str:
    return ", ".join(sorted({f"{row['model']} (tp {row['tp']})" for row in rows}))


def _series(row: Row) -> str:
    return f"{row['model']} tp {row['tp']}" + (f" {row['linear']}" if row["op"] == "gemm" else "")
