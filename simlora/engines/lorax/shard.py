"""When the loader's operations hold the shard: as part of a step, or alone while nothing runs."""

from __future__ import annotations

from typing import NamedTuple

from simlora.engines.lorax.loader import DOWNLOAD, LOAD, OFFLOAD, Loader, Started
from simlora.engines.lorax.queues import AdapterQueues
from simlora.engines.request import Request
from simlora.engines.sync_engine import Load

SPARE_LOADS = 8
"""Beyond two loads of every adapter in a row without a batch, nothing will change any more."""


class Hold(NamedTuple):
    """What the shard does before a step."""

    loads: tuple[Load, ...] = ()
    loading: tuple[Request, ...] = ()
    """For whom, in that order."""
    other_s: float = 0.0
    """Time of anything else."""


class Shard:
    """One replica's shard between its loader and its batches."""

    def __init__(self, loader: Loader, queues: AdapterQueues) -> None:
        self.loader, self._queues = loader, queues
        self._alone = False
        """The operation in progress is not part of a step."""
        self._fruitless = 0
        """Loads in a row while nothing ran."""

    @property
    def stuck(self) -> bool:
        """Turns end before the adapters are loaded: they come and go, and nobody is ever served."""
        return self._fruitless > 2 * (len(self._queues.known) + SPARE_LOADS)

    def used(self) -> None:
        """There was a batch, or everybody left."""
        self._fruitless = 0

    def settle(self, now_s: float) -> bool:
        """Whether an operation was in progress that is done by now."""
        done = self.loader.settle(self._queues, now_s)
        if done is not None:
            useful = done.kind == DOWNLOAD or not self._alone
            self._fruitless = 0 if useful else self._fruitless + (done.kind == LOAD)
        return done is not None

    def work(self, now_s: float) -> bool:
        """Without a batch: see that the loader does what there is to do. False: nothing."""
        loader = self.loader
        if loader.doing is None and loader.queue:
            self._alone = True
            _charge(loader.start(now_s))
        return loader.doing is not None

    def hold(self, now_s: float) -> Hold:
        """Before a step: the rest of an operation in progress, or else the loader's next one."""
        loader = self.loader
        self._alone = False
        if loader.doing is not None:
            rest_s, loader.ends_s = loader.ends_s - now_s, now_s
            return Hold(other_s=rest_s)
        if not loader.queue:
            return Hold()
        started = loader.start(now_s)
        loader.ends_s = now_s  # over by the next plan
        kind, queue = started.operation
        if kind == LOAD and started.seconds and queue.requests:
            return Hold(((queue.adapter, queue.rank, started.tier),), (queue.requests[0],))
        _charge(started)
        return Hold(other_s=started.seconds)


def _charge(started: Started) -> None:
    """The request that waits longest for the adapter caused its download or load."""
    kind, queue = started.operation
    if kind != OFFLOAD and queue.requests:
        queue.requests[0].load_s += started.seconds
