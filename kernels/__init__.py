"""Multi-LoRA kernels in Triton: y += scaling * (x A^T) B^T with another adapter for every token."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("torch") is None or find_spec("triton") is None:
    raise ImportError("simlora.kernels needs torch and triton: pip install 'simlora[gpu]'")

from .apply import apply_lora, rows_for, step_segments
from .bgmv import bgmv
from .errors import LayoutError
from .grouped_gemm import ProblemList, grouped_gemm, problem_list, reference_grouped_gemm
from .layout import GroupWeights, from_tensors
from .mbgmm import mbgmm
from .mbgmv import mbgmv
from .padded import padded
from .padded_bmm import padded_bmm
from .paging import GroupShape, PagePlan, pack_adapter, paged_group
from .reference import reference_expand, reference_lora, reference_shrink, summed_partials
from .segments import Segments, build_segments, tile_bound, to_device
from .sgmv import sgmv_expand, sgmv_shrink
from .shard import shard_column, shard_row
from .tiles import Tile

__all__ = [
    "GroupShape",
    "GroupWeights",
    "LayoutError",
    "PagePlan",
    "ProblemList",
    "Segments",
    "Tile",
    "apply_lora",
    "bgmv",
    "build_segments",
    "from_tensors",
    "grouped_gemm",
    "mbgmm",
    "mbgmv",
    "pack_adapter",
    "padded",
    "padded_bmm",
    "paged_group",
    "problem_list",
    "reference_expand",
    "reference_grouped_gemm",
    "reference_lora",
    "reference_shrink",
    "rows_for",
    "sgmv_expand",
    "sgmv_shrink",
    "shard_column",
    "shard_row",
    "step_segments",
    "summed_partials",
    "tile_bound",
    "to_device",
]
