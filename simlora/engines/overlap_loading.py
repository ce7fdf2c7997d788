"""Adapters on their way to the GPU on a side stream, while steps go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache

from simlora.engines.base import NEVER_S
from simlora.engines.inputs import Inputs
from simlora.latency.loads import HOST_LINK
from simlora.latency.step import DISK, REMOTE
from simlora.memory.copies import Completion, CopyEngine, Stage
from simlora.scenario.lora_modules import adapter_bytes

Stages = Callable[[int, str], Sequence[Stage]]
"""(own rank, tier) -> the legs of a copy."""


class OverlapLoading:
    """Copies in flight of one replica. `due_s` is when something about them changes next; NEVER_S without copies.

    The copy engine is told the time only at its own events, at starts and when a copy is given up: how the links share
    their bandwidth is summed up between calls, and must not depend on how often somebody looks.
    """

    def __init__(self, copies: CopyEngine, stages: Stages) -> None:
        """copies: with a link named HOST_LINK, whose transfers slow the steps down."""
        self._copies, self._stages = copies, stages
        self._host_link = copies.links[HOST_LINK]
        self._tiers: dict[int, str] = {}
        self.due_s = NEVER_S

    def __contains__(self, adapter: int) -> bool:
        return adapter in self._tiers

    def __iter__(self) -> Iterator[int]:
        return iter(self._tiers)

    def __len__(self) -> int:
        return len(self._tiers)

    @property
    def copying(self) -> bool:
        """Bytes cross the host link now."""
        return len(self._host_link) > 0

    def start(self, adapter: int, rank: int, tier: str, now_s: float) -> None:
        """Begin to copy an adapter, found in `tier`, to the place that is kept for it."""
        self._copies.start(adapter, self._stages(rank, tier), now_s)
        self._tiers[adapter] = tier
        self._look_ahead()

    def advance(self, now_s: float) -> list[tuple[Completion, str]]:
        """What arrived by now_s, in order, and the tiers it came from."""
        arrived = []
        while self.due_s <= now_s:
            arrived += [(done, self._tiers.pop(done.adapter)) for done in self._copies.advance_to(self.due_s)]
            self._look_ahead()
        return arrived

    def cancel(self, adapter: int, now_s: float) -> None:
        """Give a copy up."""
        self._copies.cancel(adapter, now_s)
        del self._tiers[adapter]
        self._look_ahead()

    def _look_ahead(self) -> None:
        event_s = self._copies.next_event_s()
        self.due_s = NEVER_S if event_s is None else event_s


def overlap_loading(inputs: Inputs) -> OverlapLoading:
    """A replica's copies. What is in remote storage is fetched whole first, over a link of its own."""
    scenario, transfers = inputs.scenario, inputs.latency.transfers
    links, remote = transfers.links(), scenario.storage.remote
    if remote is not None:
        links[REMOTE] = remote.bandwidth_gib_s * 2**30

    @cache
    def stages(rank: int, tier: str) -> tuple[Stage, ...]:
        if tier != REMOTE:
            return tuple(Stage(*leg) for leg in transfers.stages(rank, tier))
        assert remote is not None
        size = adapter_bytes(scenario.model_spec, rank, scenario.adapter_modules)
        return Stage(REMOTE, size, remote.latency_s), *stages(rank, DISK)

    return OverlapLoading(CopyEngine(links), stages)
