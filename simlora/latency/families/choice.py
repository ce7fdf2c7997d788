"""From a family's name to its kernels on one model, measured or assumed.

Families that nobody measured on the calibrated GPU: A kernel starts as fast as vLLM's shrink and expand do; weights
stream as the LoRA kernels of this repository read them; rows move as element-wise kernels move them; whole tiles are
multiplied as GEMMs multiply. All of it is marked assumed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from simlora.latency.calibration import Calibration, FamilyParameters, FamilyTerm, Term
from simlora.latency.families.kernels import (
    OLD_BLOCKS,
    ONE_ROW,
    SIMLORA_ROWS,
    SIXTEEN_ROWS,
    THIRTY_TWO_ROWS,
    Copied,
    Gathered,
    GroupedGemm,
    Looped,
    Tiled,
)
from simlora.latency.families.work import LoraFamily, lora_groups
from simlora.scenario.model import ModelSpec

CACHE_OVER_MEMORY = 2.2
"""Rate of weights that the L2 cache serves, over that of the memory: 128 further rows of one adapter take 1.32 ms more
in one-row kernels (benchmarks/results/kernels-details-h200.json), 8.1 TB/s, where first reads reach 3.7 TB/s."""
MEMORY_SHARE = 0.87
"""Rate of first reads in those kernels over that of the base model's GEMMs."""


def assumed_family(name: str, calibration: Calibration) -> FamilyTerm:
    """Costs of one-row kernels (bgmv, mbgmv), tiles (sgmv, mbgmm) and grouped GEMM, from the calibration's other
    terms."""
    terms = calibration.terms
    memory = terms.operators.parameters.weight_bytes_per_s * MEMORY_SHARE
    tiled = name not in ("bgmv", "mbgmv")
    parameters = FamilyParameters(
        launch_s=terms.lora_kernels.parameters.launch_s,
        bytes_per_s=memory,
        cache_bytes_per_s=memory * CACHE_OVER_MEMORY,
        flops=terms.operators.parameters.gemm_flops if tiled else None,
        activation_bytes_per_s=terms.operators.parameters.activation_bytes_per_s,
    )
    return FamilyTerm(basis="assumed", parameters=parameters, note="from the calibration's measured terms")


GRAPH_LAUNCH_S = 1.3e-6
"""A trivial kernel in a step where the calibration does not say: H200, 0.7 to 1.3 us between dependent kernels."""
OLD_ARCHITECTURES = ("volta", "turing", "ampere", "ada")
"""Before Hopper."""
ONE_RANK_FAMILIES = ("padded", "padded-bmm")
"""Families that compute every adapter of a step at one rank; the others compute each at its own."""
FUSED = ("csgmv", "simlora")
"""Families that serve q, k and v by one launch."""


class Layout(NamedTuple):
    """Where the kernels run."""

    model: ModelSpec
    tp: int
    modules: tuple[str, ...]
    sharded: bool = False
    """Tensor parallelism splits A and B both."""
    stacked: bool = True
    """Adapters lie in slots of one rank, stacked; else each in tensors of its own."""


class Known(NamedTuple):
    """A family's kernels and where their costs come from."""

    kernels: LoraFamily
    term: Term


def family_term(name: str, calibration: Calibration) -> FamilyTerm:
    """Costs by measurement where there is one, else assumed."""
    measured = calibration.terms.lora_families
    found = None if measured is None else measured.parameters.get(name)
    return found if found is not None else assumed_family(name, calibration)


def make_family(name: str, calibration: Calibration, layout: Layout, one_rank: bool = False) -> Known:
    """A family but `padded`, whose kernels are those of the LoRA kernel term. one_rank: a call for each distinct rank.

    Raises KeyError for a name that is none.
    """
    term = family_term(name, calibration)
    launches = calibration.terms.launches
    fill_s = GRAPH_LAUNCH_S if launches is None else launches.parameters.graph_s
    groups = lora_groups(layout.model, layout.tp, layout.modules, name in FUSED, layout.sharded)
    base = (term.parameters, fill_s, groups)
    if name == "grouped-gemm":
        gpu, flops = calibration.gpu, calibration.terms.operators.parameters.gemm_flops
        blocks = OLD_BLOCKS if gpu.architecture in OLD_ARCHITECTURES else gpu.sm_count
        return Known(GroupedGemm(*base, blocks=blocks, block_flops=flops / gpu.sm_count), term)
    if name == "padded-bmm":
        return Known((Gathered if layout.stacked else Copied)(*base), term)
    kind, settings = _KINDS[name]
    if one_rank and kind is Tiled:
        settings = {**settings, "one_rank": True}
    return Known(kind(*base, **settings), term)


_KINDS: dict[str, tuple[Callable[..., LoraFamily], dict[str, Any]]] = {
    "sgmv": (Tiled, {"rows": THIRTY_TWO_ROWS, "fills_per_product": 1.0}),
    "bgmv": (Tiled, {"rows": ONE_ROW, "fills_per_product": 0.5}),
    "mbgmv": (Tiled, {"rows": ONE_ROW}),
    "mbgmm": (Tiled, {"rows": THIRTY_TWO_ROWS, "triton": True}),
    "csgmv": (Tiled, {"rows": SIXTEEN_ROWS, "fused": True, "triton": True}),
    "simlora": (Tiled, {"rows": SIMLORA_ROWS, "fused": True, "triton": True}),
    "loop": (Looped, {}),
}
"""Launches per projection: sgmv zeroes and sets up beside shrink and expand, bgmv zeroes one buffer, the others do not
(S-LoRA zeroes its buffers once a step, SGLang never). Sources: Punica's add_lora_sgmv_custom_cutlass, LoRAX's
add_lora_bgmv, S-LoRA's lora_unordered_batch_infer, SGLang's chunked_sgmv kernels."""
