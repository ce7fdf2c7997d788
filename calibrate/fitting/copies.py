"""Fits adapter loads to copies into slots and to reads of adapter files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from simlora.latency.calibration import CopyParameters
from simlora.latency.loads import Copies
from simlora.latency.step import DISK, HOST
from simlora.scenario.lora_modules import ALL_LINEAR
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

OVERLAPPED = "overlapped"
LARGE_BYTES = 2**20
"""Blocks from which the link's rate, not a copy's fixed time, makes most of the time."""
START = {
    "bytes_per_s": 2.5e10, "module_s": 3e-5, "mismatch_module_s": 3e-6, "disk_module_s": 1e-4, "disk_bytes_per_s": 1e9,
    "block_s": 1e-5,
}  # fmt: skip
Models = Mapping[str, ModelSpec]


def fit_copies(rows: Sequence[Row], models: Models, template: CopyParameters, seed: int) -> TermFit | None:
    """None without adapter loads. Disk parameters stay the template's where no file was read (the note says so)."""
    loads = of_op(rows, "adapter_load", layout="modules", memory="pinned")
    blocks = [r for r in of_op(rows, "h2d", memory="pinned", streams=1) if r["bytes"] >= LARGE_BYTES]
    disk = of_op(rows, "adapter_from_disk", cache="page")
    if len(loads) < 2 or not blocks:
        return None
    every = [*loads, *blocks, *disk]
    measured = seconds(every)
    parts = [(loads, "loads"), (blocks, "blocks"), (disk, "disk")]
    mask = np.concatenate([held_out_mask(len(part), seed, name) for part, name in parts])
    seen = [row for row, out in zip(every, mask.tolist(), strict=True) if not out]
    parameters, block_s = _solve(seen, measured[~mask], models, template, bool(disk))
    fitted = _predict(every, models, parameters, block_s)
    read = "page-cache reads of safetensors files" if disk else "no file was read: disk as before"
    return TermFit(
        term="copies",
        parameters=parameters,
        measured=spans(loads, max_lora_rank="slot_rank"),
        fit_error=relative_rms(fitted[~mask], measured[~mask]),
        held_out_error=held_out_rms(fitted, measured, mask),
        note=f"pinned blocks, module-by-module loads, {read}",
        axis="bytes",
        points=points(every, fitted, mask, lambda r: r["bytes"], _series),
        also={"block_s": block_s},
    )


def _solve(
    rows: Sequence[Row], measured: Array, models: Models, template: CopyParameters, disk: bool
) -> tuple[CopyParameters, float]:
    """Parameters and a block's fixed time. Whether copies overlap their issuing is settled by what fits better."""
    start = {name: value for name, value in START.items() if disk or not name.startswith("disk")}
    tried = []
    for way in _ways(template):
        found = fit_positive(
            lambda v, way=way: _predict(rows, models, _parameters(way, v), v["block_s"]),  # type: ignore[misc]
            measured,
            start,
        )
        parameters = _parameters(way, found)
        error = relative_rms(_predict(rows, models, parameters, found["block_s"]), measured)
        tried.append((error, parameters, found["block_s"]))
    _, parameters, block_s = min(tried, key=lambda entry: entry[0])
    return parameters, block_s


def _ways(template: CopyParameters) -> list[CopyParameters]:
    if OVERLAPPED not in type(template).model_fields:
        return [template]
    return [template.model_copy(update={OVERLAPPED: value}) for value in (False, True)]


def _parameters(template: CopyParameters, values: Mapping[str, float]) -> CopyParameters:
    known = type(template).model_fields
    return template.model_copy(update={name: value for name, value in values.items() if name in known})


def _predict(rows: Sequence[Row], models: Models, parameters: CopyParameters, block_s: float) -> Array:
    return np.array([_seconds(row, models, parameters, block_s) for row in rows])


def _seconds(row: Row, models: Models, parameters: CopyParameters, block_s: float) -> float:
    if row["op"] == "h2d":
        return float(block_s + row["bytes"] / parameters.bytes_per_s)
    slot_rank = row.get("slot_rank", row["rank"])
    copies = Copies(parameters, models[row["model"]], row["tp"], slot_rank, ALL_LINEAR)
    from_host = copies.load_s(row["rank"], HOST)
    return from_host if row["op"] == "adapter_load" else copies.load_s(row["rank"], DISK) - from_host


def _series(row: Row) -> str:
    if row["op"] == "adapter_load":
        return "into slots" if row["rank"] == row["slot_rank"] else "into larger slots"
    return "block" if row["op"] == "h2d" else "from disk"
