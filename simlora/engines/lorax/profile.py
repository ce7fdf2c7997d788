"""How LoRAX executes a step: SGMV for prompts, BGMV for decodes, a call for each rank; graphs for decodes of one rank.

Source: the code (a7394ba): server/lorax_server/utils/{graph,sgmv,layers}.py, adapters/lora.py.
"""

from __future__ import annotations

from functools import partial

from simlora.latency.calibration import CopyParameters, LaunchParameters
from simlora.latency.collectives import COLUMN_MODULES, ELEMENT_BYTES, ROW_MODULES, Collectives
from simlora.latency.cuda_graphs import Captured
from simlora.latency.families.work import LoraWork
from simlora.latency.loads import Recipe, matrices
from simlora.latency.profile import EngineProfile, any_rank
from simlora.latency.step import StepPlan
from simlora.scenario.engines.lorax import LoraxConfig
from simlora.scenario.model import ModelSpec

GRAPH_BATCHES = (1, 2, 3, 4, 8, 16, 32)
GRAPH_RANKS = (0, 8, 16, 32, 64)
"""CUDA graphs captured at the start: every batch size for every rank, 0 without adapters."""
LARGEST_GRAPH = 128
"""compile_max_batch_size."""
LAZY_STEP = 32
"""Larger batches than those of the start are padded to multiples of it, and captured when they first come."""
LARGEST_RANK = 128
"""Per GPU; above it LoRAX loops over adapters. Above it on all GPUs together its decodes take SGMV."""
KERNELS_PER_MATRIX = 2
"""Of a load, beside the copy: transposed, and padded into the stack of all layers."""


def lorax_profile(engine: LoraxConfig) -> EngineProfile:
    """See EngineSpec.profile."""
    return EngineProfile(
        "lorax",
        "alternating",
        "sgmv",
        "bgmv",
        partial(_recipes, engine.adapter_loading.pinned is not False),
        choose=partial(_kernels, engine.tensor_parallel_size),
        one_rank=True,
        sharded=True,
        exchange=exchange,
        torch_launches=11,
        graph=None if engine.enforce_eager else decode_graph,
    ).with_kernels(engine.kernels)


def padded_rank(rank: int, tensor_parallel_size: int = 1) -> int:
    """The rank that an adapter is stored and computed with: 8 per GPU up to that, above it a multiple of 16; 0 stays 0.

    Source: adapters/lora.py, pad_rank.
    """
    if rank <= 0:
        return 0
    least = 8 * tensor_parallel_size
    return least if rank <= least else -(-rank // 16) * 16


def decode_graph(plan: StepPlan) -> Captured | None:
    """The graph of a decode step; None: eager. Mixed ranks, other ranks and large batches have none."""
    rank = plan.mix.max_rank if plan.mix is not None and plan.num_adapters else 0
    one_rank = plan.mix is None or plan.mix.distinct_ranks <= 1
    if plan.prefills or plan.num_tokens > LARGEST_GRAPH or not one_rank or rank not in GRAPH_RANKS:
        return None
    for size in GRAPH_BATCHES:
        if plan.num_tokens <= size:
            return Captured(size, rank, True)
    return Captured(-(-plan.num_tokens // LAZY_STEP) * LAZY_STEP, rank, False)


def exchange(base: Collectives, modules: tuple[str, ...], work: LoraWork) -> float:
    """An all-reduce for every projection and distinct rank."""
    projections = sum(module in modules for module in ROW_MODULES + COLUMN_MODULES)
    ranks, rank_bytes = max(work.mix.distinct_ranks, 1), work.mix.rank_tokens * ELEMENT_BYTES
    return projections * ranks * base.reduce_s(rank_bytes / ranks)


def _kernels(tensor_parallel_size: int, prompts: int, work: LoraWork) -> str:
    rank = work.mix.max_rank
    if prompts:
        return "sgmv"
    if rank / tensor_parallel_size > LARGEST_RANK:
        return "loop"
    return "sgmv" if rank > LARGEST_RANK else "bgmv"


def _recipes(
    pinned: bool, model: ModelSpec, modules: tuple[str, ...], copies: CopyParameters, launches: LaunchParameters
) -> dict[bool, Recipe]:
    """From files, or from pageable memory with host_cache: one copy a matrix, transposed, padded and stacked."""
    each = model.num_hidden_layers * matrices(modules, fused=False)
    return any_rank(Recipe(each * (1 + KERNELS_PER_MATRIX) * launches.torch_s, pinned=pinned))
