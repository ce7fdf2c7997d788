"""Fits the costs of LoRA kernel families, for engines whose kernels the LoRA kernel term does not describe.

A family's time is a sum over physical sizes (families/work.py), so its costs are non-negative least squares of relative
errors; the trivial kernels beside the products cost what a launch in a graph costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from simlora.latency.calibration import Calibration, FamilyParameters, FamilyTerm
from simlora.latency.families.choice import Layout, family_term, make_family
from simlora.latency.families.kernels import ONE_ROW, Tiled, growing_chunk
from simlora.latency.families.work import Cost, CostedFamily, LoraWork
from simlora.latency.step import AdapterMix
from simlora.scenario.lora_modules import ALL_LINEAR
from simlora.scenario.model import ModelSpec

from .core import Array, held_out_mask, held_out_rms, relative_rms, seconds, spans
from .samples import Row, of_op

SAMPLED = {"csgmv": "sglang", "simlora": "simlora", "padded-bmm": "bmm", "loop": "loop", "bgmv": "bgmv"}
"""Family -> its name in samples."""
COSTS = {
    "launch_s": "products", "depth_s": "depth", "rank_s": "ranks", "tile_s": "tiles", "bytes_per_s": "weight_bytes",
    "cache_bytes_per_s": "repeated_bytes", "flops": "operations", "activation_bytes_per_s": "activation_bytes",
}  # fmt: skip
"""Parameter -> the size it prices; rates price in their inverse."""
LARGEST_RANK = {"bgmv": 16}
"""Largest slot rank that is fitted. One-row kernels were timed with tiles tuned for more rows: at rank 64 they take 8
times as long as at 16, which says nothing of kernels made for one row."""
HIDDEN = {"bgmv": ("tiles", "activation_bytes")}
"""What costs nothing: at one rank, neither can be told from the weights that every further row reads again."""
ROUNDS = 6
"""Fits in turn with the choice of the fastest tile height, until it settles."""
CACHED = ("padded-bmm",)
"""Families whose weights may come from the cache at once: copies just written. The others read no faster than the GPU's
memory."""


def fit_families(
    rows: Sequence[Row], models: Mapping[str, ModelSpec], calibration: Calibration, seed: int
) -> dict[str, FamilyTerm]:
    """Family -> its term, for those with enough samples."""
    found = {}
    for family, name in SAMPLED.items():
        steps = of_op(rows, "lora_step", family=name)
        steps = [row for row in steps if row["slot_rank"] <= LARGEST_RANK.get(family, row["slot_rank"])]
        if len(steps) > 2 * len(COSTS):
            found[family] = _fit(steps, family, models, calibration, seed)
    return found


def sample_work(row: Row) -> LoraWork:
    """The work of one timed step of single-token sequences."""
    mix = AdapterMix(row["sum_of_ranks"], row["sum_of_token_ranks"], row["slot_rank"], len(row.get("rank_mix", (0,))))
    return LoraWork(row["tokens"], row["lora_tokens"], row["adapters"], mix, 0, row["tokens"])


def sample_family(row: Row, family: str, models: Mapping[str, ModelSpec], calibration: Calibration) -> CostedFamily:
    """The kernels that were timed: on the row's layers; with chunks that grow where the family has chunks; and the
    one-row kernels of this project for bgmv, one launch for q, k and v and no zero fill."""
    layout = Layout(replace(models[row["model"]], num_hidden_layers=row["layers"]), row["tp"], ALL_LINEAR)
    kernels = make_family("simlora" if family == "bgmv" else family, calibration, layout).kernels
    assert isinstance(kernels, CostedFamily)
    if family == "csgmv" and isinstance(kernels, Tiled):
        kernels = replace(kernels, rows=(growing_chunk(row["tokens"]),))
    if family == "bgmv" and isinstance(kernels, Tiled):
        kernels = replace(kernels, rows=ONE_ROW, parameters=family_term(family, calibration).parameters)
    return kernels


def _fit(
    rows: Sequence[Row], family: str, models: Mapping[str, ModelSpec], calibration: Calibration, seed: int
) -> FamilyTerm:
    measured = seconds(rows)
    mask = held_out_mask(len(rows), seed, family)
    kernels = [sample_family(row, family, models, calibration) for row in rows]
    works = [sample_work(row) for row in rows]
    parameters: FamilyParameters | None = None
    for _ in range(ROUNDS if len(getattr(kernels[0], "rows", ())) > 1 else 1):
        known = [_with(item, parameters, row["tokens"]) for item, row in zip(kernels, rows, strict=True)]
        sizes = [_size(item, work) for item, work in zip(known, works, strict=True)]
        parameters = _costs(
            sizes, measured, ~mask, known[0].fill_s, _floor(family, calibration), HIDDEN.get(family, ())
        )
    assert parameters is not None
    fitted = np.array([replace(k, parameters=parameters).step_s(w) for k, w in zip(kernels, works, strict=True)])
    held_out = held_out_rms(fitted, measured, mask)
    return FamilyTerm(
        basis="measured",
        measured=spans(rows, tokens="tokens", adapters="adapters", max_rank="slot_rank", tensor_parallel_size="tp"),
        fit_error=round(relative_rms(fitted[~mask], measured[~mask]), 4),
        held_out_error=None if held_out is None else round(held_out, 4),
        note=f"{len(rows)} whole steps in CUDA graphs, weights of every layer distinct",
        parameters=parameters,
    )


def _with(kernels: CostedFamily, parameters: FamilyParameters | None, tokens: int) -> CostedFamily:
    """The kernels as priced by the round before; in the first round tile heights are guessed from the tokens."""
    if parameters is not None:
        return replace(kernels, parameters=parameters)
    if isinstance(kernels, Tiled) and len(kernels.rows) > 1:
        return replace(kernels, rows=(64 if tokens >= 512 else 16 if tokens > 32 else 1,))
    return kernels


def _floor(family: str, calibration: Calibration) -> Array:
    memory = 0.0 if family in CACHED else 1.0 / calibration.gpu.hbm_bytes_per_s
    return np.array([memory if name == "bytes_per_s" else 0.0 for name in COSTS])


def _costs(
    sizes: Sequence[Cost],
    measured: Array,
    seen: NDArray[np.bool_],
    fill_s: float,
    floor: Array,
    hidden: tuple[str, ...],
) -> FamilyParameters:
    """Least squares on the relative errors of the samples seen, with costs of at least `floor`, and with first reads of
    weights that cost no less than repeated ones."""
    named = [[0.0 if name in hidden else getattr(size, name) for name in COSTS.values()] for size in sizes]
    matrix = np.array(named)[seen]
    rest = measured[seen] - np.array([size.fills * fill_s for size in sizes])[seen] - matrix @ floor
    first, again = list(COSTS).index("bytes_per_s"), list(COSTS).index("cache_bytes_per_s")
    matrix[:, again] += matrix[:, first]  # a cost of any read, beside one of first reads alone
    unit = np.maximum(np.abs(matrix).max(axis=0), 1e-300)
    scaled, _ = nnls(matrix / unit / measured[seen, None], rest / measured[seen])
    costs = scaled / unit
    costs[first] += costs[again]
    return _parameters(floor + costs)


def _size(kernels: CostedFamily, work: LoraWork) -> Cost:
    """The sizes of all groups together."""
    costs = [kernels.cost(group, group.work(work)) for group in kernels.groups]
    return Cost(*(sum(parts) for parts in zip(*costs, strict=True)))


def _parameters(costs: Array) -> FamilyParameters:
    values: dict[str, Any] = {}
    for name, cost in zip(COSTS, costs.tolist(), strict=True):
        rounded = float(f"{cost:.6g}")
        if name in ("bytes_per_s", "cache_bytes_per_s", "flops", "activation_bytes_per_s"):
            values[name] = float(f"{1.0 / cost:.6g}") if cost > 0.0 else None
        else:
            values[name] = rounded
    return FamilyParameters(**values)
