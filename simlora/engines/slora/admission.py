"""Who may join the running batch of S-LoRA: requests, prompt tokens, adapter memory, the worst case of the KV cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from simlora.engines.base import KV, SEQS, SLOTS, TOKENS
from simlora.engines.request import Request
from simlora.engines.slora.worst_case import WorstCase, newcomer

AdapterUnits = Callable[[int], int]
"""Rank -> units of the pool that an adapter takes."""


@dataclass(frozen=True)
class SloraLimits:
    """What one replica may hold. Units are rows or pages of the pool."""

    kv_units: int
    """What the test compares with: max_total_token_num."""
    unit_tokens: int
    adapter_units: int
    """Units more, for adapters alone (pool_size_lora)."""
    unified: bool
    """Adapters take units of the KV cache, too; False: adapter_units are all they get."""
    cached: bool
    """Adapters that nobody uses stay while there is room; False (published code): freed when a request ends."""
    charged: bool
    """The test charges adapters against kv_units: in a unified pool, and in the published code always."""
    overlap: bool
    """Adapters are copied on a side stream while the batch decodes; False: before their prefill, which waits."""
    prefetch: bool
    running_max_req_size: int
    batch_max_tokens: int
    """Prompt tokens of one prefill."""
    idle_s: float = 0.01
    """Sleep of the loop between two looks at the queue while nobody runs."""

    @property
    def total_units(self) -> int:
        return self.kv_units + self.adapter_units

    def kv_limit(self, adapter_units: int) -> int:
        """What the worst case must stay below, with adapters of that many units."""
        return self.kv_units - adapter_units if self.charged else self.kv_units


class Admission:
    """One look at the queue: the running requests, those accepted so far, and whether another one can join them."""

    def __init__(
        self,
        limits: SloraLimits,
        units: AdapterUnits,
        running: WorstCase,
        num_running: int,
        adapters: Iterable[int],
        adapter_units: int,
        step: int,
    ) -> None:
        """What decodes now: running, num_running (requests), adapters, adapter_units. step: the next decode step."""
        self._limits, self._units, self._step = limits, units, step
        self._worst, self._adapters = running.copy(), set(adapters)
        self.adapter_units = adapter_units
        """Of the distinct adapters of everybody."""
        self.num_running, self.tokens = num_running, 0
        self.blocked = TOKENS
        """Why the last request was refused."""

    def hold(self, request: Request) -> None:
        """Count a request that was accepted earlier, and waits for its adapter."""
        self._worst.add(newcomer(request, self._step))
        self.adapter_units = self.units_with(request)
        self._adapters.add(request.adapter)
        self.num_running += 1
        self.tokens += request.prefill_tokens

    def units_with(self, request: Request) -> int:
        """Units of the adapters with the request's among them."""
        new = request.adapter and request.adapter not in self._adapters
        return self.adapter_units + (self._units(request.rank) if new else 0)

    def add(self, request: Request) -> bool:
        """The request joins, if nothing speaks against it."""
        reason = self._refusal(request)
        if reason is None:
            self.hold(request)
            return True
        self.blocked = reason
        return False

    def _refusal(self, request: Request) -> int | None:
        limits, adapter_units = self._limits, self.units_with(request)
        if self.num_running >= limits.running_max_req_size:
            return SEQS
        if not limits.unified and adapter_units > limits.adapter_units:
            return SLOTS
        trial = self._worst.copy()
        trial.add(newcomer(request, self._step))
        if trial.need() >= limits.kv_limit(adapter_units):
            return KV
        if self.tokens + request.prefill_tokens > limits.batch_max_tokens:
            return TOKENS
        return None


def fits_alone(limits: SloraLimits, units: AdapterUnits, request: Request) -> bool:
    """Whether an empty engine would admit the request."""
    nobody = WorstCase(limits.unit_tokens)
    return Admission(limits, units, nobody, 0, (), 0, 0).add(request)
