"""The `engine` key: one model per kind of engine, told apart by `kind` (vllm where it is left out)."""

from __future__ import annotations

from types import MappingProxyType
from typing import Annotated, Any

from pydantic import BeforeValidator, Discriminator, Tag

from simlora.scenario.base import WrongValueError
from simlora.scenario.engines.base import EngineBase, KernelFamily
from simlora.scenario.engines.baselines import GroupedConfig, MergedSwapConfig, SequentialConfig
from simlora.scenario.engines.lorax import LoraxConfig
from simlora.scenario.engines.punica import PunicaConfig
from simlora.scenario.engines.sglang import SglangConfig
from simlora.scenario.engines.slora import SloraConfig
from simlora.scenario.engines.vllm import Speculative, VllmConfig

ENGINES: MappingProxyType[str, type[EngineBase]] = MappingProxyType(
    {
        "vllm": VllmConfig,
        "slora": SloraConfig,
        "lorax": LoraxConfig,
        "punica": PunicaConfig,
        "sglang": SglangConfig,
        "grouped": GroupedConfig,
        "sequential": SequentialConfig,
        "merged-swap": MergedSwapConfig,
    }
)
"""Kind -> its settings."""


def _kind(data: Any) -> Any:
    kind = data.get("kind") if isinstance(data, dict) else getattr(data, "kind", None)
    return "vllm" if kind is None else kind


def _known_kind(data: Any) -> Any:
    if isinstance(data, dict) and _kind(data) not in tuple(ENGINES):
        raise WrongValueError("kind", data["kind"], f"must be one of: {', '.join(ENGINES)}")
    if not isinstance(data, (dict, EngineBase)):
        raise WrongValueError("", data, "must be a mapping of keys to values")
    return data


AnyEngine = Annotated[
    Annotated[VllmConfig, Tag("vllm")]
    | Annotated[SloraConfig, Tag("slora")]
    | Annotated[LoraxConfig, Tag("lorax")]
    | Annotated[PunicaConfig, Tag("punica")]
    | Annotated[SglangConfig, Tag("sglang")]
    | Annotated[GroupedConfig, Tag("grouped")]
    | Annotated[SequentialConfig, Tag("sequential")]
    | Annotated[MergedSwapConfig, Tag("merged-swap")],
    Discriminator(_kind),
    BeforeValidator(_known_kind),
]

__all__ = ["ENGINES", "AnyEngine", "EngineBase", "KernelFamily", "Speculative", "VllmConfig"]
