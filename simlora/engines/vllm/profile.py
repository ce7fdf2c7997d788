"""How vLLM executes a step: Triton kernels over padded slots, graphs and launches by version."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Protocol

from simlora.engines.vllm.cuda_graphs import capture_sizes
from simlora.latency.calibration import CopyParameters, LaunchParameters, StartParameters
from simlora.latency.inputs import EngineSettings
from simlora.latency.loads import Recipe
from simlora.latency.profile import EngineProfile
from simlora.scenario.engines.vllm import Speculative
from simlora.scenario.engines.vllm_versions import vllm_version
from simlora.scenario.lora_modules import module_shape
from simlora.scenario.model import ModelSpec


class VllmSettings(EngineSettings, Protocol):
    """What a profile is made from: a VllmConfig, or anything with its flags."""

    @property
    def speculative(self) -> Speculative | None: ...


def vllm_profile(engine: VllmSettings) -> EngineProfile:
    """See EngineSpec.profile.

    Raises:
        ConfigError: a version that is not in the table.
    """
    version, loading = vllm_version(engine.version), engine.adapter_loading
    execution, start = version.execution, version.execution.start_s
    draft = engine.speculative.num_speculative_tokens if engine.speculative else 0
    sizes = capture_sizes(version.graphs, engine.max_num_seqs, engine.max_num_batched_tokens, draft)
    pinned = loading.pinned is not False
    profile = EngineProfile(
        "vllm",
        "alternating" if execution.alternates else "pipelined",
        "padded",
        "padded",
        partial(_recipes, pinned),
        slotted=True,
        sharded=engine.fully_sharded_loras,
        unused_runs=execution.unused_lora_runs,
        regimes=True,
        capture_sizes=() if engine.enforce_eager else sizes,
        full_decode_graphs=version.graphs.full_decode,
        families=engine.kernels != "padded" or bool(loading.overlap) or not pinned,
        needs_ranks=False,
        measured_loads=pinned,
        expand_columns=execution.expand_columns_sliced,
        default_penalties=execution.default_penalties,
    )
    if start is not None:
        profile = replace(profile, start=StartParameters(base_s=start[0], lora_s=0.0, slot_s=start[1]))
    return profile.with_kernels(engine.kernels)


def _recipes(
    pinned: bool, model: ModelSpec, modules: tuple[str, ...], copies: CopyParameters, launches: LaunchParameters
) -> dict[bool, Recipe]:
    """Pinned, one tensor a matrix: one copy each, after a zero fill; strided where the rank is below the slots'."""
    pairs = sum(module_shape(model, module)[2] for module in modules)
    equal = Recipe(pairs * copies.module_s, pinned=pinned)
    return {False: equal, True: equal._replace(issue_s=pairs * (copies.module_s + copies.mismatch_module_s))}
