"""Fits attention over the KV cache to decode and prefill kernels of one layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from simlora.latency.calibration import AttentionParameters
from simlora.latency.operators import Attention
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

START = {"kv_bytes_per_s": 2e12, "request_tokens": 30.0, "prefill_flops": 3e14, "decode_s": 8e-6, "prefill_s": 1e-5}
Models = Mapping[str, ModelSpec]


def fit_attention(rows: Sequence[Row], models: Models, template: AttentionParameters, seed: int) -> TermFit | None:
    """None where decode or prefill is missing. `also` has the fixed time of a kernel, which belongs to layer_s."""
    decode, prefill = of_op(rows, "attention_decode"), of_op(rows, "attention_prefill")
    if len(decode) < 4 or len(prefill) < 3:
        return None
    both = [*decode, *prefill]
    measured = seconds(both)
    mask = np.concatenate([held_out_mask(len(decode), seed, "decode"), held_out_mask(len(prefill), seed, "prefill")])
    seen = [row for row, out in zip(both, mask.tolist(), strict=True) if not out]
    found = fit_positive(lambda values: _predict(seen, models, template, values), measured[~mask], START)
    fitted = _predict(both, models, template, found)
    decoding = np.arange(len(both)) < len(decode)
    errors = {
        "decode_error": relative_rms(fitted[decoding], measured[decoding]),
        "prefill_error": relative_rms(fitted[~decoding], measured[~decoding]),
    }
    kernels = Counter(f"{row['op'].removeprefix('attention_')}: {row['kernel']}" for row in both)
    contexts = [{**row, "context_tokens": row["requests"] * row["context"]} for row in decode]
    return TermFit(
        term="attention",
        parameters=_parameters(template, found),
        measured=spans(contexts, context_tokens="context_tokens"),
        fit_error=relative_rms(fitted[~mask], measured[~mask]),
        held_out_error=held_out_rms(fitted, measured, mask),
        note=f"decode within {errors['decode_error']:.1%}, prefill within {errors['prefill_error']:.1%}; "
        + "fastest kernel of each shape: "
        + ", ".join(f"{name} x{count}" for name, count in kernels.most_common()),
        axis="context or new tokens",
        points=points(both, fitted, mask, _x, _series),
        also={"decode_s": found["decode_s"], "prefill_s": found["prefill_s"], **errors},
    )


def _parameters(template: AttentionParameters, values: Mapping[str, float]) -> AttentionParameters:
    names = ("kv_bytes_per_s", "request_tokens", "prefill_flops")
    return template.model_copy(update={name: values[name] for name in names})


def _predict(rows: Sequence[Row], models: Models, template: AttentionParameters, values: Mapping[str, float]) -> Array:
    parameters = _parameters(template, values)
    priced = {key: _attention(parameters, models, *key) for key in {(row["model"], row["tp"]) for row in rows}}
    return np.array([_seconds(row, priced[row["model"], row["tp"]], values) for row in rows])


def _attention(parameters: AttentionParameters, models: Models, model: str, tp: int) -> Attention:
    return Attention.of(parameters, replace(models[model], num_hidden_layers=1), tp)


def _seconds(row: Row, attention: Attention, values: Mapping[str, float]) -> float:
    if row["op"] == "attention_prefill":
        return values["prefill_s"] + attention.chunk_s(row["start"], row["new"])
    tokens = row["requests"] * row["context"]
    return float(values["decode_s"] + tokens * attention.decode_token_s + row["requests"] * attention.request_s)


def _x(row: Row) -> float:
    return float(row["requests"] * row["context"] if row["op"] == "attention_decode" else row["new"])


def _series(row: Row) -> str:
    where = f"{row['model']} tp {row['tp']}"
    if row["op"] == "attention_decode":
        return f"decode {where}, {row['requests']} requests"
    return f"prefill {where} from {row['start']}"
