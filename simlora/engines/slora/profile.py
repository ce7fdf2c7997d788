"""How S-LoRA executes a step: MBGMM for prompts, MBGMV for decodes, no graphs, host and GPU alternating.

Source: the paper (arXiv:2311.03285); the published code (c1ddf48), where Engine.artifact is set.
"""

from __future__ import annotations

from functools import partial

from simlora.latency.calibration import CopyParameters, LaunchParameters
from simlora.latency.collectives import COLUMN_MODULES, ELEMENT_BYTES, Collectives
from simlora.latency.families.work import LoraWork
from simlora.latency.loads import Recipe
from simlora.latency.profile import EngineProfile, any_rank
from simlora.scenario.engines.slora import SloraConfig
from simlora.scenario.lora_modules import ATTENTION
from simlora.scenario.model import ModelSpec

SEGMENTED_PROMPT, SEGMENTED_RANK, SEGMENTED_PROMPTS = 200, 64, 2
"""The code takes its Triton prefill kernels from this longest prompt, largest rank and number of prompts on."""
PAPER_COPIES, ARTIFACT_COPIES = 1, 2
"""The code copies a layer's combined tensor once for the key buffer and again for the value buffer."""


def slora_profile(engine: SloraConfig) -> EngineProfile:
    """See EngineSpec.profile."""
    crossings = ARTIFACT_COPIES if engine.artifact else PAPER_COPIES
    return EngineProfile(
        "slora",
        "alternating",
        "mbgmm",
        "mbgmv",
        partial(_recipes, engine.adapter_loading.pinned is not False, crossings),
        choose=_artifact_kernels if engine.artifact else None,
        sharded=True,
        exchange=exchange,
        modules=ATTENTION,
        crossings=crossings,
        torch_launches=11,
        triton_launches=9,
    ).with_kernels(engine.kernels)


def segmented(prompts: int, longest: int, max_rank: int) -> bool:
    """Whether the published code takes its segmented kernels for these prompts, not one row a token."""
    return longest >= SEGMENTED_PROMPT and max_rank >= SEGMENTED_RANK and prompts >= SEGMENTED_PROMPTS


def _artifact_kernels(prompts: int, work: LoraWork) -> str:
    return "mbgmm" if prompts and segmented(prompts, work.longest, work.mix.max_rank) else "mbgmv"


def _recipes(
    pinned: bool,
    crossings: int,
    model: ModelSpec,
    modules: tuple[str, ...],
    copies: CopyParameters,
    launches: LaunchParameters,
) -> dict[bool, Recipe]:
    """One pinned tensor a layer, copied and scattered into the pool's rows."""
    issue_s = model.num_hidden_layers * crossings * 2 * launches.torch_s
    return any_rank(Recipe(issue_s, crossings=crossings, pinned=pinned))


def exchange(base: Collectives, modules: tuple[str, ...], work: LoraWork) -> float:
    """With M LoRA rows, N GPUs and rank r, per layer: an all-gather for the column-parallel projections of a block (3 M
    r for q, k, v), and an all-reduce of M r that is fused with the base model's: 5 (N - 1) M r / N elements in an
    attention block (section 6 of the paper)."""
    share, rank_bytes = (base.tp - 1) / base.tp, work.mix.rank_tokens * ELEMENT_BYTES
    seconds = 0.0
    for columns, row in ((COLUMN_MODULES[:3], "o_proj"), (COLUMN_MODULES[3:], "down_proj")):
        gathered = sum(module in modules for module in columns)
        reduced = 2 if row in modules else 0
        if gathered or reduced:
            seconds += base.link_s((gathered + reduced) * share * rank_bytes, bool(gathered))
    return seconds
