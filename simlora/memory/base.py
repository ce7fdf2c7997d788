"""What every engine's byte ledger tells, whatever its own parts are."""

from __future__ import annotations

from typing import NamedTuple, Protocol

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
