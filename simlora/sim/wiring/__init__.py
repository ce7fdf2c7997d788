"""Which parts make up a replica: one file per kind of engine."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from simlora.engines.base import Engine
from simlora.sim.inputs import Inputs
from simlora.sim.wiring import grouped, lorax, merged_swap, punica, sequential, sglang, slora, vllm

ENGINES: MappingProxyType[str, Callable[[Inputs], Engine]] = MappingProxyType(
    {
        "vllm": vllm.make_engine,
        "slora": slora.make_engine,
        "lorax": lorax.make_engine,
        "punica": punica.make_engine,
        "sglang": sglang.make_engine,
        "grouped": grouped.make_engine,
        "sequential": sequential.make_engine,
        "merged-swap": merged_swap.make_engine,
    }
)
"""Kind -> how one of its replicas is built."""
