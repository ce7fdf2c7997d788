"""LoRAX's loader: downloads, loads and offloads, one after another, each of which holds the whole shard.

Source: router/src/loader.rs and server/lorax_server/server.py (a7394ba): the handlers run synchronously in the event
loop that runs the model. An operation is sent when the one before has answered, so between two steps there is room for
one; without a batch they follow each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from simlora.engines.lorax.queues import BUDGET, AdapterQueue, AdapterQueues
from simlora.latency.step import DISK, HOST

DOWNLOAD, LOAD, OFFLOAD = range(3)

OFFLOAD_S = 0.0012
"""torch.cuda.empty_cache and synchronize once an adapter's tensors are dropped, which give its segments and those of
cached activations back to the driver. Measured on an H200 with Llama-3.1-8B's shapes: 0.7 ms at rank 8, 1.1 ms at rank
16, 1.5 ms at rank 64, and 0.1 to 0.2 ms more for the next step, which allocates anew."""

_TIER_CODES = {HOST: 1, DISK: 2}
_REMOTE_CODE = 3


@dataclass(frozen=True)
class LoaderTimes:
    """What the operations take."""

    load_s: Callable[[int, str], float]
    """Of a rank from a tier: HOST or DISK."""
    cost: Callable[[int, int], float]
    """Share of the memory budget that an (adapter, rank) takes, known once it is downloaded."""
    download_s: Callable[[int], float] | None = None
    """Of a rank, from remote storage to the local disk; None: all adapters are on the disk."""
    offload_s: float = OFFLOAD_S
    host_cache: bool = False
    """Adapters that were loaded once are loaded from host memory; LoRAX itself has no such cache."""
    resident: frozenset[int] = frozenset({0})
    """Always on the GPU: the base model, and preloaded adapters. Operations on them answer at once."""


class Operation(NamedTuple):
    kind: int
    queue: AdapterQueue


class Started(NamedTuple):
    """An operation that holds the shard from now on."""

    operation: Operation
    tier: str
    """Where a load finds the adapter."""
    seconds: float


class Loader:
    """The operations of one replica. stored: adapters on its disk though there is remote storage. cached: in host
    memory."""

    def __init__(self, times: LoaderTimes, stored: Iterable[int] = (), cached: Iterable[int] = ()) -> None:
        self.times = times
        self._stored, self._cached = set(stored), set(cached)
        self._fetched: set[int] = set()
        """Downloaded from remote storage and not loaded yet."""
        self.queue: deque[Operation] = deque()
        self.doing: Operation | None = None
        self.ends_s = 0.0
        """When the operation in progress is done."""
        self.loads_by_rank: dict[int, int] = {}
        self.offloads = 0

    @property
    def idle(self) -> bool:
        """Nothing in progress, and nothing to do."""
        return self.doing is None and not self.queue

    def download(self, queue: AdapterQueue) -> None:
        self.queue.append(Operation(DOWNLOAD, queue))

    def move(self, kind: int, queue: AdapterQueue) -> None:
        """LOAD or OFFLOAD."""
        queue.moves += 1
        self.queue.append(Operation(kind, queue))

    def start(self, now_s: float) -> Started:
        """Begin the next operation."""
        operation = self.queue.popleft()
        kind, queue = operation
        tier, seconds = DISK, 0.0
        if queue.adapter not in self.times.resident:
            if kind == LOAD:
                tier = self._load(queue)
                seconds = self.times.load_s(queue.rank, tier)
            elif kind == OFFLOAD:
                self.offloads += 1
                seconds = self.times.offload_s
            elif self.times.download_s is not None and queue.adapter not in self._stored:
                self._fetched.add(queue.adapter)
                seconds = self.times.download_s(queue.rank)
        self.doing, self.ends_s = operation, now_s + seconds
        return Started(operation, tier, seconds)

    def settle(self, queues: AdapterQueues, now_s: float) -> Operation | None:
        """The operation in progress if it is done by now; then its adapter's state says so."""
        if self.doing is None or now_s < self.ends_s:
            return None
        done, self.doing = self.doing, None
        kind, queue = done
        if kind == DOWNLOAD:
            self._stored.add(queue.adapter)
            queue.units = round(self.times.cost(queue.adapter, queue.rank) * BUDGET)
            return done
        queue.moves -= 1
        if kind == LOAD and not queue.moves:
            queues.set_ready(queue, True)
        return done

    def _load(self, queue: AdapterQueue) -> str:
        """Count a load; returns its tier."""
        adapter, rank = queue.adapter, queue.rank
        tier = HOST if adapter in self._cached else DISK
        code = _TIER_CODES[tier]
        if adapter in self._fetched:
            self._fetched.remove(adapter)
            code = _REMOTE_CODE
        queue.loaded_from = max(queue.loaded_from, code)
        self.loads_by_rank[rank] = self.loads_by_rank.get(rank, 0) + 1
        if self.times.host_cache:
            self._cached.add(adapter)
        return tier
