"""Fits sends of a tensor from one GPU to its peer, as pipeline stages exchange them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simlora.latency.calibration import SendParameters, SendTerm

from .core import Array, fit_positive, held_out_mask, held_out_rms, relative_rms, seconds, spans
from .samples import Row, of_op

START = {"latency_s": 3e-5, "link_fraction": 0.7}


def fit_sends(rows: Sequence[Row], link_bytes_per_s: float, seed: int) -> SendTerm | None:
    """Sends that the next one waits for, as a stage waits for its inputs; None without at least three of them."""
    sends = of_op(rows, "send_recv", kind="ping_pong")
    if len(sends) < 3:
        return None
    sizes, measured = np.array([float(row["bytes"]) for row in sends]), seconds(sends)
    mask = held_out_mask(len(sends), seed, "sends")

    def predict(parts: Array, latency_s: float, link_fraction: float) -> Array:
        return latency_s + parts / (link_bytes_per_s * min(link_fraction, 1.0))

    found = fit_positive(lambda values: predict(sizes[~mask], **values), measured[~mask], START)
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
