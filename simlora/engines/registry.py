"""Which engines there are: one line for each kind, imported when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import MappingProxyType

from simlora.engines.base import Engine
from simlora.engines.inputs import Inputs

BUILDERS: MappingProxyType[str, str] = MappingProxyType(
    {
        "vllm": "vllm.build:make_engine",
        "slora": "slora.build:make_engine",
        "lorax": "lorax.build:make_engine",
        "punica": "punica.build:make_engine",
        "sglang": "sglang.build:make_engine",
        "grouped": "baselines.build:make_grouped",
        "sequential": "baselines.build:make_sequential",
        "merged-swap": "baselines.build:make_merged_swap",
    }
)
"""Kind -> module and function that builds one of its replicas."""


def builder(kind: str) -> Callable[[Inputs], Engine]:
    """How a replica of that kind is built. Raises KeyError for an unknown kind."""
    module, _, name = BUILDERS[kind].partition(":")
    found: Callable[[Inputs], Engine] = getattr(import_module(f"simlora.engines.{module}"), name)
    return found
