"""What an engine is to the rest of simlora: one EngineSpec for each kind, made in the engine's own folder.

The YAML schema of an engine is scenario/engines/<kind>.py; all else about it is reached through its spec, which
engines/registry.py imports when it is first asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from simlora.engines.base import Engine
from simlora.engines.inputs import Inputs
from simlora.engines.request_columns import RequestColumns
from simlora.latency.families.choice import ONE_RANK_FAMILIES
from simlora.latency.profile import EngineProfile
from simlora.memory.ledger import Ledger
from simlora.memory.shortage import Shortage
from simlora.scenario.root import Scenario

Changes = dict[str, Any]
"""Key path -> new value."""
Option = tuple[float, Changes]
"""(share of the request-seconds that the change could save, the change)."""
Shares = Mapping[str, float]
"""The summary's bottleneck.shares, null as 0."""


@dataclass(frozen=True)
class Limits:
    """What stands for vLLM's max_num_seqs and max_num_batched_tokens in the engine."""

    seqs: str = "max_num_seqs"
    """Its key."""
    queue_counts: bool = False
    """Waiting requests count in it, too."""
    tokens: str | None = "max_num_batched_tokens"
    """Its key; None: no such limit."""
    decodes_count: bool = True
    """Decodes count in the token limit; else prompts alone do."""


def _buffers_named_alike(scenario: Scenario, places: int | None) -> Changes:
    return {} if places is None else {"max_loras": places}


def _no_advice(scenario: Scenario, ledger: Any) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True)
class EngineSpec:
    """One kind of engine. Functions that take a scenario take one of this kind, loaded."""

    kind: str
    ledger: Callable[[Scenario], Ledger]
    """The byte ledger of one GPU, whether or not it fits."""
    shortages: Callable[[Scenario, Any], Iterator[Shortage | None]]
    """(scenario, its ledger, which does not fit) -> why, what one value can mend first; the first that is not None is
    told. The last one is never None."""
    profile: Callable[[Any], EngineProfile]
    """Resolved settings -> how steps execute and loads happen."""
    options: Callable[[Scenario, Shares], Iterator[Option]]
    """Changes of the engine's own keys that are worth trying for what the request-seconds went into."""
    adapter_memory: Callable[[Scenario], str]
    """Where the engine keeps adapters on the GPU, in words."""
    slot_rank: Callable[[Scenario], int]
    """The rank that a place for an adapter on the GPU is made for; 0 where an adapter takes what it needs."""
    build: Callable[[Inputs], Engine] | None = None
    """The engine of one replica with its parts, where requests are objects (engines/request.py)."""
    build_replica: Callable[[Inputs, int, RequestColumns, bool], Any] | None = None
    """A whole replica, where requests are columns: (inputs, its index, requests, coalesce)."""
    limits: Limits = Limits()
    memory_advice: Callable[[Scenario, Any], tuple[str, ...]] = _no_advice
    """(scenario, its ledger) -> a sentence for every flag that takes memory without need."""
    modules: tuple[str, ...] | None = None
    """Modules of an adapter that the engine computes with, whatever it holds; None: those that it holds."""
    merges: bool = False
    """Adapters are merged into the weights, not computed beside the base model."""
    loads_first: bool = False
    """A request is admitted when its adapter is there, whatever the settings."""
    preloads: bool = False
    """All adapters are in host memory from the start, so that adapters.preload would say nothing."""
    why_aborted: str = "it could not serve them"
    """Why the engine gives requests up."""
    places: Callable[[Scenario], int | None] = lambda scenario: scenario.raw.get("engine", {}).get("max_loras")
    """Places for adapters on the GPU as the user counted them; None where they are not counted."""
    with_places: Callable[[Scenario, int | None], Changes] = _buffers_named_alike
    """(scenario of another engine, its places) -> the keys of this engine that give as many, without `engine.`."""

    def adapters_apart(self, engine: Any) -> bool:
        """Adapters are computed beside the base model: LoRA is on, and they are not merged into the weights."""
        return bool(engine.enable_lora) and not self.merges

    def pads_ranks(self, engine: Any) -> bool:
        """The LoRA kernels compute every adapter of a step at one rank."""
        return self.adapters_apart(engine) and engine.kernels in ONE_RANK_FAMILIES

    def loads_before_admission(self, engine: Any) -> bool:
        """A request's load lies before its admission; False: in its first step."""
        return self.loads_first or bool(engine.adapter_loading.overlap)
