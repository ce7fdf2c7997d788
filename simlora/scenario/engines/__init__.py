"""The `engine` key: one model per kind of engine, told apart by `kind` (vllm where it is left out).

This is the one place where an engine is registered. Its schema names its EngineSpec, through which the rest of simlora
reaches it; both are imported when a scenario names the kind.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import SerializeAsAny

from simlora.scenario.base import by_kind, found
from simlora.scenario.engines.base import EngineBase

ENGINES = {
    "vllm": "simlora.scenario.engines.vllm:VllmConfig",
    "slora": "simlora.scenario.engines.slora:SloraConfig",
    "lorax": "simlora.scenario.engines.lorax:LoraxConfig",
    "punica": "simlora.scenario.engines.punica:PunicaConfig",
    "sglang": "simlora.scenario.engines.sglang:SglangConfig",
    "grouped": "simlora.scenario.engines.baselines:GroupedConfig",
    "sequential": "simlora.scenario.engines.baselines:SequentialConfig",
    "merged-swap": "simlora.scenario.engines.baselines:MergedSwapConfig",
}
"""Kind -> its settings."""
PUBLISHED = tuple(kind for kind, place in ENGINES.items() if ".baselines:" not in place)
"""All but the naive baselines."""
DEFAULT_KIND = "vllm"
"""Of a scenario that names none."""


def engine_config(kind: str) -> type[EngineBase]:
    """The settings of that kind. Raises KeyError for an unknown kind."""
    config: type[EngineBase] = found(ENGINES[kind])
    return config


AnyEngine = Annotated[SerializeAsAny[EngineBase], by_kind(ENGINES, engine_config, DEFAULT_KIND)]
