"""What engines have in common that keep whole adapters, each in tensors of its own: Punica and the naive baselines."""

from __future__ import annotations

from functools import partial
from typing import Any

from simlora.latency.calibration import CopyParameters, LaunchParameters
from simlora.latency.loads import Recipe, matrices
from simlora.latency.profile import Recipes, any_rank
from simlora.scenario.model import ModelSpec
from simlora.scenario.root import Scenario


def projection_loads(engine: Any) -> Recipes:
    """Pinned host copies, one tensor a projection over all layers, one copy each."""
    return partial(_recipes, engine.adapter_loading.pinned is not False)


def _recipes(
    pinned: bool, model: ModelSpec, modules: tuple[str, ...], copies: CopyParameters, launches: LaunchParameters
) -> dict[bool, Recipe]:
    return any_rank(Recipe(matrices(modules, fused=False) * launches.torch_s, pinned=pinned))


def largest_rank(scenario: Scenario) -> int:
    """The largest rank of an adapter, which every buffer is made for; 0 without adapters."""
    return max((rank for rank, count in scenario.adapters.rank_counts().items() if count > 0), default=0)


def buffer_words(scenario: Scenario) -> str:
    """Where the engine keeps adapters on the GPU."""
    return f"{scenario.engine.max_loras} buffers of rank {largest_rank(scenario)}"
