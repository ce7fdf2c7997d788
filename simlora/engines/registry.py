"""Which engines there are: one line for each kind, imported when it is first asked for."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import MappingProxyType

from simlora.engines.spec import EngineSpec

SPECS: MappingProxyType[str, str] = MappingProxyType(
    {
        "vllm": "vllm.spec:SPEC",
        "slora": "slora.spec:SPEC",
        "lorax": "lorax.spec:SPEC",
        "punica": "punica.spec:SPEC",
        "sglang": "sglang.spec:SPEC",
        "grouped": "baselines.spec:GROUPED",
        "sequential": "baselines.spec:SEQUENTIAL",
        "merged-swap": "baselines.spec:MERGED_SWAP",
    }
)
"""Kind -> module in engines/ and name of its EngineSpec there."""
PUBLISHED = tuple(kind for kind, place in SPECS.items() if not place.startswith("baselines."))
"""All but the naive baselines."""


@cache
def engine_spec(kind: str) -> EngineSpec:
    """The spec of that kind. Raises KeyError for an unknown kind."""
    module, _, name = SPECS[kind].partition(":")
    found: EngineSpec = getattr(import_module(f"simlora.engines.{module}"), name)
    return found
