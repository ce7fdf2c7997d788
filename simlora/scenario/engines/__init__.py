"""The `engine` key: one model per kind of engine, told apart by `kind` (vllm where it is left out)."""

from __future__ import annotations

from functools import reduce
from operator import or_
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, get_args

from pydantic import BeforeValidator, Discriminator, Tag

from simlora.scenario.base import WrongValueError
from simlora.scenario.engines.base import EngineBase
from simlora.scenario.engines.baselines import GroupedConfig, MergedSwapConfig, SequentialConfig
from simlora.scenario.engines.lorax import LoraxConfig
from simlora.scenario.engines.punica import PunicaConfig
from simlora.scenario.engines.sglang import SglangConfig
from simlora.scenario.engines.slora import SloraConfig
from simlora.scenario.engines.vllm import VllmConfig

DEFAULT_KIND = "vllm"
"""Of a scenario that names none."""
EngineUnion = (
    VllmConfig
    | SloraConfig
    | LoraxConfig
    | PunicaConfig
    | SglangConfig
    | GroupedConfig
    | SequentialConfig
    | MergedSwapConfig
)
"""The one list of engines here; their kinds are the defaults of their `kind`."""
ENGINES: MappingProxyType[str, type[EngineBase]] = MappingProxyType(
    {config.model_fields["kind"].default: config for config in get_args(EngineUnion)}
)
"""Kind -> its settings."""


def _kind(data: Any) -> Any:
    kind = data.get("kind") if isinstance(data, dict) else getattr(data, "kind", None)
    return DEFAULT_KIND if kind is None else kind


def _known_kind(data: Any) -> Any:
    if isinstance(data, dict) and _kind(data) not in tuple(ENGINES):
        raise WrongValueError("kind", data["kind"], f"must be one of: {', '.join(ENGINES)}")
    if not isinstance(data, (dict, EngineBase)):
        raise WrongValueError("", data, "must be a mapping of keys to values")
    return data


if TYPE_CHECKING:
    AnyEngine = EngineUnion
else:
    AnyEngine = Annotated[
        reduce(or_, (Annotated[config, Tag(kind)] for kind, config in ENGINES.items())),
        Discriminator(_kind),
        BeforeValidator(_known_kind),
    ]
