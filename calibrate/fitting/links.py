"""Fits what goes over the link between GPUs: all-reduces of tensor parallelism, sends between pipeline stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from simlora.latency.calibration import CollectiveParameters, SendParameters, SendTerm
from simlora.latency.collectives import ALL_REDUCES_PER_LAYER, Collectives
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

REDUCE_START = {"latency_s": 1e-5, "link_fraction": 0.5}


def fit_collectives(
    rows: Sequence[Row], any_model: ModelSpec, link_bytes_per_s: float, template: CollectiveParameters, seed: int
) -> TermFit | None:
    """All-reduces in CUDA graphs, eager ones where there are none; None without either or on one GPU."""
    reduces = [r for r in of_op(rows, "all_reduce", regime="graph") or of_op(rows, "all_reduce") if r["world"] > 1]
    if len(reduces) < 3:
        return None
    one = replace(any_model, hidden_size=1, dtype_bytes=1, num_hidden_layers=1)
    measured = seconds(reduces)
    mask = held_out_mask(len(reduces), seed, "collectives")
    seen = [row for row, out in zip(reduces, mask.tolist(), strict=True) if not out]
    found = fit_positive(
        lambda values: _predict(seen, one, link_bytes_per_s, template, values), measured[~mask], REDUCE_START
    )
    fitted = _predict(reduces, one, link_bytes_per_s, template, found)
    regimes = ", ".join(sorted({row["regime"] for row in reduces}))
    return TermFit(
        term="collectives",
        parameters=_parameters(template, found),
        measured=_range(reduces),
        fit_error=relative_rms(fitted[~mask], measured[~mask]),
        held_out_error=held_out_rms(fitted, measured, mask),
        note=f"NCCL all-reduces ({regimes}); an engine's own all-reduce kernels may be faster for small sizes",
        axis="bytes",
        points=points(reduces, fitted, mask, lambda r: r["bytes"], lambda r: f"all-reduce on {r['world']}"),
        also={},
    )


def _range(rows: Sequence[Row]) -> dict[str, tuple[float, float]]:
    """GPUs that reduced together; one GPU, which has nothing to reduce, is no extrapolation."""
    measured = spans(rows, tensor_parallel_size="world")
    return {name: (1.0, high) for name, (_, high) in measured.items()}


def _parameters(template: CollectiveParameters, values: Mapping[str, float]) -> CollectiveParameters:
    fraction = min(values["link_fraction"], 1.0)
    return template.model_copy(update={"latency_s": values["latency_s"], "link_fraction": fraction})


def _predict(
    rows: Sequence[Row], one: ModelSpec, link: float, template: CollectiveParameters, values: Mapping[str, float]
) -> Array:
    """One byte a token: a layer's all-reduces of `bytes` tokens are priced, and one of them taken."""
    parameters = _parameters(template, values)
    return np.array(
        [
            Collectives(parameters, one, row["world"], link, False, 0).step_s(row["bytes"], 0) / ALL_REDUCES_PER_LAYER
            for row in rows
        ]
    )


SEND_START = {"latency_s": 3e-5, "link_fraction": 0.7}


def fit_sends(rows: Sequence[Row], link_bytes_per_s: float, seed: int) -> SendTerm | None:
    """Sends that the next one waits for, as a stage waits for its inputs; None without at least three of them."""
    sends = of_op(rows, "send_recv", kind="ping_pong")
    if len(sends) < 3:
        return None
    sizes, measured = np.array([float(row["bytes"]) for row in sends]), seconds(sends)
    mask = held_out_mask(len(sends), seed, "sends")

    def predict(parts: Array, latency_s: float, link_fraction: float) -> Array:
        return latency_s + parts / (link_bytes_per_s * min(link_fraction, 1.0))

    found = fit_positive(lambda values: predict(sizes[~mask], **values), measured[~mask], SEND_START)
    fitted = predict(sizes, **found)
    held_out = held_out_rms(fitted, measured, mask)
    return SendTerm(
        basis="measured",
        measured=spans(sends, bytes="bytes"),
        fit_error=round(relative_rms(fitted[~mask], measured[~mask]), 4),
        held_out_error=None if held_out is None else round(held_out, 4),
        note="NCCL send and receive between 2 GPUs linked by NVLink, launched one by one, there and back in turn",
        parameters=SendParameters(
            latency_s=float(f"{found['latency_s']:.6g}"), link_fraction=float(f"{min(found['link_fraction'], 1.0):.4g}")
        ),
    )
