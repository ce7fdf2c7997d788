"""Routing policies: which replica gets a request. Plain objects that see only (possibly stale) views.

A policy that a scenario can name is a NamedRouter; `ROUTERS` in scenario/cluster.py says where it is found.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, Self

from simlora.engines.view import View
from simlora.scenario.cluster import RouterConfig, ScrapingConfig

if TYPE_CHECKING:
    from simlora.engines.inputs import Inputs


class Send(NamedTuple):
    """Send the request to this replica now."""

    replica: int


class Hold(NamedTuple):
    """Keep the request at the router and ask again at until_s; with infinity, when a request is done somewhere: the
    first of those kept so is asked for first, and the next once it was sent."""

    until_s: float


class Reject(NamedTuple):
    """Answer the client with an error."""

    reason: str


Decision = Send | Hold | Reject
Request = Any
"""What a router may read of a request: index, adapter, rank, prompt_tokens, prefill_tokens."""


class Router(Protocol):
    """A routing policy."""

    needs_views: bool
    """False lets the simulation skip building views."""
    oblivious: bool
    """Its decisions depend on the requests alone and are all Send, so that they can be made ahead of time: it is an
    Oblivious."""

    def choose(self, request: Request, views: Sequence[View], now_s: float) -> Decision:
        """Where the request goes; one view for each replica, in their order (none where needs_views is False)."""
        ...


class Oblivious(Protocol):
    """A router whose decisions depend on the requests alone."""

    def replica_of(self, requests: Any, index: int) -> int:
        """Where that request goes; requests: RequestColumns, or engines/request.py's Requests."""


class NamedRouter(ABC):
    """A routing policy that describes itself, as scenario/cluster.py's RouterClass: the docstring is its help."""

    Options: ClassVar[type[RouterConfig]] = ScrapingConfig
    engines: ClassVar[tuple[str, ...]] = ()
    elsewhere: ClassVar[str] = ""
    needs_views = True
    oblivious = False

    @classmethod
    def build(cls, inputs: Inputs) -> Self:
        """The router of a scenario's shared replicas, two or more; its options are inputs.scenario.cluster.router."""
        return cls()

    @abstractmethod
    def choose(self, request: Request, views: Sequence[View], now_s: float) -> Decision:
        """See Router.choose."""


class RoundRobin(NamedRouter):
    """Replicas in turn."""

    needs_views = False
    oblivious = True

    def __init__(self, replicas: int) -> None:
        self._replicas, self._next = replicas, 0

    @classmethod
    def build(cls, inputs: Inputs) -> Self:
        return cls(inputs.scenario.cluster.replicas)

    def choose(self, request: Request, views: Sequence[View], now_s: float) -> Decision:
        self._next += 1
        return Send((self._next - 1) % self._replicas)

    def replica_of(self, requests: Any, index: int) -> int:
        return index % self._replicas


class LeastRequests(NamedRouter):
    """The replica with the fewest unfinished requests in its view; ties in turn."""

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, request: Request, views: Sequence[View], now_s: float) -> Decision:
        least = min(view.outstanding for view in views)
        tied = [i for i, view in enumerate(views) if view.outstanding == least]
        self._turn += 1
        return Send(tied[self._turn % len(tied)])


class LoraAffinity(NamedRouter):
    """Weighted scores of the Gateway API inference scheduler: queue, KV use and LoRA affinity (each in 0 to 1).

    LoRA score: 1.0 where the adapter has requests running, 0.8 where a slot is free, 0 elsewhere (a base request scores
    1.0 everywhere). Queue score: (longest - own) / (longest - shortest). KV score: 1 - use. The weights default to 1
    each, as in the scheduler's integration configuration. Ties are broken by a hash of the request's number, so they
    neither depend on the order of events nor favour one replica.
    Source: llm-d-inference-scheduler 520af47, scorers queue, kv-cache-utilization and lora-affinity.
    """

    def __init__(self, queue_weight: float = 1.0, kv_weight: float = 1.0, lora_weight: float = 1.0) -> None:
        self._weights = queue_weight, kv_weight, lora_weight

    def choose(self, request: Request, views: Sequence[View], now_s: float) -> Decision:
        queue_weight, kv_weight, lora_weight = self._weights
        longest = max(view.waiting for view in views)
        spread = longest - min(view.waiting for view in views)
        best, tied = -1.0, [0]
        for i, view in enumerate(views):
            queue = (longest - view.waiting) / spread if spread else 1.0
            score = queue_weight * queue + kv_weight * (1.0 - view.kv_usage) + lora_weight * _affinity(request, view)
            if score > best:
                best, tied = score, [i]
            elif score == best:
                tied.append(i)
        return Send(tied[_mix(request.index) % len(tied)])


def _affinity(request: Request, view: View) -> float:
    if not request.adapter or request.adapter in view.adapters:
        return 1.0
    return 0.8 if len(view.adapters) < view.max_loras else 0.0


def _mix(number: int) -> int:
    """Spread consecutive numbers (multiplicative hash, Knuth, The Art of Computer Programming vol. 3, 6.4)."""
    return (number * 2654435761 & 0xFFFFFFFF) >> 16
