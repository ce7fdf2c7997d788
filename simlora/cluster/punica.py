"""Punica's cluster scheduler: fill the busiest GPU that has room, and empty the one that has least to do.

Source: arXiv:2310.18547, section 5.1. A request that finds no room waits, first come, first served. Requests that were
sent to a GPU count as active there though their adapter is still being copied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from simlora.cluster.actions import Action, Migrate
from simlora.cluster.router import Decision, Hold, NamedRouter, Request, Send
from simlora.engines.view import View
from simlora.scenario.cluster import RouterConfig

if TYPE_CHECKING:
    from simlora.engines.inputs import Inputs

WHEN_ROOM_S = float("inf")


class PunicaOptions(RouterConfig):
    """The engine's own scheduler always sees its GPUs as they are: it places every request itself."""

    consolidate_s: float | None = Field(
        default=None, gt=0, le=3600, description="Interval at which the least busy GPU is emptied; null: never"
    )


class PunicaPlacement(NamedRouter):
    """That engine's own scheduler, which fills the busiest GPU that has room."""

    Options = PunicaOptions
    engines = ("punica",)
    elsewhere = "cannot hand over its requests"

    def __init__(self, max_batch_size: int, kv_pages: int, page_tokens: int) -> None:
        """All of one replica."""
        self._max_batch, self._pages, self._page_tokens = max_batch_size, kv_pages, page_tokens
        self._queue: deque[int] = deque()
        """Requests that wait for room, by number."""

    @classmethod
    def build(cls, inputs: Inputs) -> PunicaPlacement:
        """With consolidation where the options say so."""
        options, ledger = inputs.scenario.cluster.router, inputs.ledger
        assert isinstance(options, PunicaOptions)
        gpu = inputs.scenario.engine.max_num_seqs, ledger.kv_units, ledger.kv_unit_tokens
        if options.consolidate_s is None:
            return PunicaPlacement(*gpu)
        return PunicaConsolidation(*gpu, options.consolidate_s)

    def choose(self, request: Request, views: Sequence[View], now_s: float) -> Decision:
        if self._queue and self._queue[0] != request.index:
            self._queue.append(request.index)
            return Hold(WHEN_ROOM_S)
        need = min(-(-request.prefill_tokens // self._page_tokens), self._pages)  # more than all: it is rejected there
        fitting = [
            (view.outstanding, index)
            for index, view in enumerate(views)
            if view.outstanding < self._max_batch and self._free_pages(view) >= need
        ]
        if fitting:
            if self._queue:
                self._queue.popleft()
            return Send(max(fitting)[1])
        if not self._queue:
            self._queue.append(request.index)
        return Hold(WHEN_ROOM_S)

    def _free_pages(self, view: View) -> int:
        return round((1.0 - view.kv_usage) * self._pages)


class PunicaConsolidation(PunicaPlacement):
    """Placement, and at every tick all requests of the least busy GPU move to busier ones, if these have room for them
    all: then it is idle and could be given back."""

    def __init__(self, max_batch_size: int, kv_pages: int, page_tokens: int, tick_s: float) -> None:
        super().__init__(max_batch_size, kv_pages, page_tokens)
        self.tick_s = tick_s

    def tick(self, now_s: float, views: Sequence[View]) -> list[Action]:
        """GPUs by active requests; among equals the one with the lowest number is emptied."""
        busy = sorted((view.outstanding, index) for index, view in enumerate(views) if view.outstanding)
        if not busy:
            return []
        left, source = busy[0]
        pages_each = -(-(self._pages - self._free_pages(views[source])) // left)
        actions: list[Action] = []
        for outstanding, target in reversed(busy[1:]):
            room = self._max_batch - outstanding
            if pages_each:
                room = min(room, self._free_pages(views[target]) // pages_each)
            moved = min(room, left)
            if moved > 0:
                actions.append(Migrate(source, target, moved))
                left -= moved
        return [] if left else actions
