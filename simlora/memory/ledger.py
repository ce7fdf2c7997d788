"""The byte ledger of one GPU: what every engine's tells, and the common form of it: named parts, then the KV cache.

No start-up of engines other than vLLM was measured: weights, activations, graphs and the CUDA context follow vLLM's
formulas at the engine's own limits; what each engine reserves, and how it counts, is its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from simlora.memory.shortage import Shortage, gb
from simlora.scenario.gpu import GpuSpec
from simlora.scenario.lora_modules import adapter_bytes
from simlora.scenario.model import ModelSpec

NO_LIMIT = 1 << 20
"""Adapters on a GPU where their number is not limited, only their bytes."""


class AdapterRoom(NamedTuple):
    """Room for adapters on one GPU."""

    slots: int
    """Most adapters at a time; NO_LIMIT where only their bytes count. Engines that count the base model include it."""
    units: int
    """Units of the engine's pool that adapters alone may use."""
    shared: bool
    """Adapters take units of the KV cache as well."""
    bytes: int
    """Set apart for adapters, used or not."""


class Ledger(Protocol):
    """Bytes are of one GPU, except host_bytes. A negative available_bytes means that the engine does not start."""

    @property
    def total_bytes(self) -> int:
        """What CUDA reports as the GPU's memory."""

    @property
    def budget_bytes(self) -> int:
        """What the engine may use."""

    @property
    def weight_bytes(self) -> int:
        """The model's tensors."""

    @property
    def activation_bytes(self) -> int:
        """Peak of a step beside the weights."""

    @property
    def adapter_area_bytes(self) -> int:
        """Set apart for adapters."""

    @property
    def adapter_room(self) -> AdapterRoom:
        """Room for adapters."""

    @property
    def available_bytes(self) -> int:
        """Left of the budget for the KV cache."""

    @property
    def kv_units(self) -> int:
        """Blocks, pages or rows that requests can hold."""

    @property
    def kv_unit_tokens(self) -> int:
        """Tokens in a unit."""

    @property
    def kv_unit_bytes(self) -> int:
        """One unit in all layers."""

    @property
    def kv_bytes(self) -> int:
        """The KV cache."""

    @property
    def usable_kv_tokens(self) -> int:
        """Tokens that requests can hold."""

    @property
    def headroom_bytes(self) -> int:
        """Free once the engine runs, peaks counted as in use."""

    @property
    def host_bytes(self) -> int:
        """Host memory of the replica's adapters."""

    @property
    def kv_tokens(self) -> int:
        """Capacity of the KV cache as the engine reports it."""

    @property
    def fits(self) -> bool:
        """The engine starts, serves its longest sequence, and can load every adapter."""

    def entries(self) -> list[tuple[str, int, str]]:
        """(label, bytes, note) of all parts, the KV cache and what is free: they add up to total_bytes."""

    def takers(self) -> dict[str, int]:
        """Label -> bytes of what the budget pays for beside the KV cache."""


WEIGHTS, ADAPTERS, ACTIVATIONS, GRAPHS, CONTEXT, SLACK = "weights", "adapters", "activations", "graphs", "cuda", "slack"
"""Roles of parts."""


class Part(NamedTuple):
    """Memory that the KV cache does not get."""

    label: str
    role: str
    bytes: int
    note: str = ""
    in_budget: bool = True
    """Paid from what the engine may use; otherwise from the rest of the GPU."""


class AdapterNeed(NamedTuple):
    """What the largest adapter takes of what adapters can get, in bytes or in units of a pool."""

    needed: int
    limit: int
    unit: str


@dataclass(frozen=True)
class EngineLedger:
    """Bytes of one GPU, except host_bytes. Parts, KV cache and headroom add up to the total."""

    kind: str
    model: ModelSpec
    gpu: GpuSpec
    total_bytes: int
    """What CUDA reports as the GPU's memory."""
    budget_bytes: int
    """What the engine may use."""
    parts: tuple[Part, ...]
    kv_unit_bytes: int
    """One unit in all layers of the GPU's pipeline stage."""
    kv_unit_tokens: int
    kv_units: int
    """Units that requests can hold."""
    kv_label: str
    unit_name: str
    """Plural: blocks, pages, rows."""
    adapter_room: AdapterRoom
    adapter_need: AdapterNeed | None
    """None without adapters."""
    adapter_modules: tuple[str, ...]
    """Modules of the adapters that the engine serves."""
    needed_kv_tokens: int
    """What the KV cache must hold for the engine to start: one sequence of the greatest length, or what was asked."""
    host_bytes: int
    """Host memory of the replica's adapters."""

    @property
    def weight_bytes(self) -> int:
        return self.role_bytes(WEIGHTS)

    @property
    def activation_bytes(self) -> int:
        return self.role_bytes(ACTIVATIONS)

    @property
    def adapter_area_bytes(self) -> int:
        return self.role_bytes(ADAPTERS)

    @property
    def available_bytes(self) -> int:
        """Left of the budget for the KV cache. Negative: the engine does not start."""
        return self.budget_bytes - sum(part.bytes for part in self.parts if part.in_budget)

    @property
    def kv_bytes(self) -> int:
        return self.kv_units * self.kv_unit_bytes

    @property
    def usable_kv_tokens(self) -> int:
        return self.kv_units * self.kv_unit_tokens

    @property
    def kv_tokens(self) -> int:
        return self.usable_kv_tokens

    @property
    def headroom_bytes(self) -> int:
        """Free on the GPU once the engine runs, peaks counted as in use. Negative: it would run out."""
        return self.total_bytes - sum(part.bytes for part in self.parts) - self.kv_bytes

    @property
    def adapters_fit(self) -> bool:
        """The largest adapter can be loaded at all."""
        return self.adapter_need is None or self.adapter_need.needed <= self.adapter_need.limit

    @property
    def fits(self) -> bool:
        """The engine starts, serves its longest sequence, and can load every adapter."""
        enough_kv = self.kv_units > 0 and self.usable_kv_tokens >= self.needed_kv_tokens
        return enough_kv and self.headroom_bytes >= 0 and self.adapters_fit

    def role_bytes(self, role: str) -> int:
        """Bytes of all parts of a role."""
        return sum(part.bytes for part in self.parts if part.role == role)

    def adapter_bytes(self, rank: int) -> int:
        """One adapter of that rank in host memory: the modules that the engine serves, unsharded."""
        return adapter_bytes(self.model, rank, self.adapter_modules)

    def entries(self) -> list[tuple[str, int, str]]:
        """Every part of the engine, then its KV cache and what is free."""
        parts = [(part.label, part.bytes, part.note) for part in self.parts if part.bytes or part.role == ADAPTERS]
        tokens = "" if self.kv_unit_tokens == 1 else f" of {self.kv_unit_tokens} tokens: {self.usable_kv_tokens} tokens"
        note = f"{self.kv_units} {self.unit_name}{tokens}"
        return [*parts, (self.kv_label, self.kv_bytes, note), ("free", self.headroom_bytes, "")]

    def takers(self) -> dict[str, int]:
        """Every part that the budget pays for."""
        return {part.label: part.bytes for part in self.parts if part.in_budget}


class LedgerRow(NamedTuple):
    """One line: bytes on one GPU and their share of its memory."""

    label: str
    bytes: int
    share: float
    note: str


def ledger_rows(ledger: Ledger) -> list[LedgerRow]:
    """Rows that add up to the GPU's memory as CUDA reports it; the last one is negative if the engine cannot start."""
    return [LedgerRow(label, size, size / ledger.total_bytes, note) for label, size, note in ledger.entries()]


def binding(ledger: Ledger, problem: Shortage | None = None) -> str:
    """What limits the replica: why it does not start (problem, as engines/fit.py finds it), or what takes the most from
    the KV cache."""
    if problem is not None:
        return f"does not fit: {problem.message}"
    takers = ledger.takers()
    label = max(takers, key=lambda name: takers[name])
    return (
        f"{label} take {takers[label] / ledger.budget_bytes:.0%} of the {gb(ledger.budget_bytes)} that the engine may "
        f"use; the KV cache gets {ledger.kv_bytes / ledger.budget_bytes:.0%}, {ledger.kv_tokens} tokens"
    )
