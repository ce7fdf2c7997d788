"""How SGLang executes a step: chunked SGMV, graphs for decodes with the LoRA kernels always inside, a host that the GPU
hides.

Source: the code of August 2026, and the 0.5.15 wheel where it is named.
"""

from __future__ import annotations

from functools import partial

from simlora.latency.calibration import CopyParameters, LaunchParameters
from simlora.latency.collectives import ELEMENT_BYTES, ROW_MODULES, Collectives
from simlora.latency.cuda_graphs import decode_graphs
from simlora.latency.families.work import LoraWork
from simlora.latency.loads import Recipe, matrices
from simlora.latency.profile import EngineProfile
from simlora.scenario.engines.sglang import SglangConfig
from simlora.scenario.model import ModelSpec

STRIDED = 1.5
"""B of a rank below the slots' has strided columns: half of the matrices take a second kernel."""


def sglang_profile(engine: SglangConfig) -> EngineProfile:
    """See EngineSpec.profile."""
    loading = engine.adapter_loading
    keeps_pinned = loading.pinned is not False or loading.overlap
    return EngineProfile(
        "sglang",
        "hidden",
        "csgmv",
        "csgmv",
        partial(_recipes, keeps_pinned),
        slotted=True,
        exchange=exchange,
        torch_launches=11,
        unused_runs=True,
        graph=decode_graphs(captured_batches(engine)),
    ).with_kernels(engine.kernels)


def captured_batches(engine: SglangConfig) -> tuple[int, ...]:
    """Batch sizes with a CUDA graph; none with disable_cuda_graph. Graphs end at max_running_requests, too.

    Source: `get_batch_sizes_to_capture` in srt/model_executor/runner/base_cuda_graph_runner.py of the 0.5.15 wheel.
    """
    if engine.disable_cuda_graph:
        return ()
    return capture_batches(min(engine.cuda_graph_max_bs, engine.max_running_requests))


def capture_batches(largest: int) -> tuple[int, ...]:
    """Ascending: 1, 2, 4, 8, 12, by 8 to 256, by 16 to 512, by 32 above; the largest is captured whatever it is.

    Source: `ServerArgs._generate_decode_cuda_graph_batch_sizes` in srt/server_args.py of the 0.5.15 wheel.
    """
    steps = (1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, largest + 1, 32), largest)
    return tuple(sorted({size for size in steps if size <= largest}))


def exchange(base: Collectives, modules: tuple[str, ...], work: LoraWork) -> float:
    """An all-reduce of [rows, rank] after each row-parallel shrink."""
    rows = sum(module in modules for module in ROW_MODULES)
    return rows * base.reduce_s(work.tokens * base.slot_rank * ELEMENT_BYTES)


def _recipes(
    keeps_pinned: bool,
    model: ModelSpec,
    modules: tuple[str, ...],
    copies: CopyParameters,
    launches: LaunchParameters,
) -> dict[bool, Recipe]:
    """One copy a matrix of a fused linear, from memory that is pinned anew for each load, unless it is kept so."""
    each = model.num_hidden_layers * matrices(modules, fused=True)
    equal = Recipe(each * launches.torch_s, pins=0 if keeps_pinned else each)
    return {False: equal, True: equal._replace(issue_s=STRIDED * equal.issue_s)}
