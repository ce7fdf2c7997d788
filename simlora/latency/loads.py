"""How adapters reach the GPU: what a blocking load takes, and the legs of a copy on a side stream.

A copy's issue and a small kernel cost the host a launch each; bytes go at the pinned or the pageable rate. Every
tensor-parallel worker copies its shard over its own link, and reads the whole file from the one disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from simlora.latency.calibration import CopyParameters, HostMemoryParameters
from simlora.latency.step import GPU, HOST
from simlora.scenario.lora_modules import ALL_LINEAR, EMBEDDINGS, adapter_bytes, module_shape
from simlora.scenario.model import ModelSpec


@dataclass(frozen=True)
class Copies:
    """Load times of one model's adapters; every tensor-parallel rank loads its shard of the same file at once."""

    parameters: CopyParameters
    model: ModelSpec
    tp: int
    slot_rank: int
    modules: tuple[str, ...]
    """Modules that the adapters hold."""

    def load_s(self, rank: int, tier: str) -> float:
        """Seconds that the step waits for an adapter of `rank` in `tier`. Fetching from remote storage is not in it."""
        if tier == GPU:
            return 0.0
        to_slot = self._to_slot_s(rank)
        return to_slot if tier == HOST else to_slot + self._read_s(rank)

    def _pairs(self) -> int:
        """(A, B) pairs of one adapter in all layers."""
        return sum(module_shape(self.model, module)[2] for module in self.modules)

    def _to_slot_s(self, rank: int) -> float:
        p = self.parameters
        per_pair = p.module_s + (p.mismatch_module_s if rank < self.slot_rank else 0.0)
        shard = adapter_bytes(self.model, rank, self.modules) / self.tp
        issuing_s, moving_s = self._pairs() * per_pair, shard / p.bytes_per_s
        return max(issuing_s, moving_s) if p.overlapped else issuing_s + moving_s

    def _read_s(self, rank: int) -> float:
        p = self.parameters
        return self._pairs() * p.disk_module_s + adapter_bytes(self.model, rank, self.modules) / p.disk_bytes_per_s


HOST_LINK, DISK_LINK = "host", "disk"
ROW_PARALLEL = ("o_proj", "down_proj")

Leg = tuple[str, float, float]
"""Link, bytes, and seconds before they move."""


class Recipe(NamedTuple):
    """One engine's way of bringing an adapter of some rank to the GPU."""

    issue_s: float
    """Host time of issuing copies and the small kernels around them."""
    crossings: int = 1
    """Times that the bytes cross the link."""
    pinned: bool = True
    pins: int = 0
    """Tensors that are pinned for the load."""


@dataclass(frozen=True)
class Transfers:
    """Loads of one model's adapters."""

    copies: CopyParameters
    memory: HostMemoryParameters
    model: ModelSpec
    tp: int
    modules: tuple[str, ...]
    """Modules that the adapters hold."""
    sharded: bool
    """Tensor parallelism splits A and B both."""
    recipes: dict[bool, Recipe]
    """By whether the rank is below the slots'."""
    slot_rank: int
    disk_bytes_per_s: float | None = None
    """The scenario's disk; None: reads take what was measured."""
    scale: float = 1.0

    def copy_bytes(self, rank: int) -> int:
        """Bytes over one GPU's host link for one load."""
        return self._recipe(rank).crossings * shard_bytes(self.model, rank, self.modules, self.tp, self.sharded)

    def links(self) -> dict[str, float]:
        """Bytes per second of the links that `stages` names."""
        return {HOST_LINK: self._link_rate(0) / self.scale, DISK_LINK: self._disk_rate() / self.scale}

    def stages(self, rank: int, tier: str) -> tuple[Leg, ...]:
        """The legs of a copy on a side stream, in order; none from the GPU. Remote storage is not among them."""
        if tier == GPU:
            return ()
        recipe = self._recipe(rank)
        issue_s = (recipe.issue_s + self._pin_s(recipe, rank)) * self.scale
        own = (HOST_LINK, float(self.copy_bytes(rank)), issue_s)
        if tier == HOST:
            return (own,)
        size = adapter_bytes(self.model, rank, self.modules)
        read = (DISK_LINK, float(size * self._readers()), self._pairs() * self.copies.disk_module_s * self.scale)
        return read, own

    def load_s(self, rank: int, tier: str) -> float:
        """Seconds of a load that nothing else shares a link with, and that the step waits for."""
        if tier == GPU:
            return 0.0
        recipe = self._recipe(rank)
        moving_s = self.copy_bytes(rank) / self._link_rate(rank)
        if self.copies.overlapped:
            seconds = max(recipe.issue_s, moving_s)
        else:
            seconds = recipe.issue_s + moving_s
        seconds += self._pin_s(recipe, rank)
        if tier != HOST:
            size = adapter_bytes(self.model, rank, self.modules) * self._readers()
            seconds += self._pairs() * self.copies.disk_module_s + size / self._disk_rate()
        return seconds * self.scale

    def _recipe(self, rank: int) -> Recipe:
        return self.recipes[rank < self.slot_rank]

    def _link_rate(self, rank: int) -> float:
        return self.copies.bytes_per_s if self._recipe(rank).pinned else self.memory.pageable_bytes_per_s

    def _pin_s(self, recipe: Recipe, rank: int) -> float:
        if not recipe.pins:
            return 0.0
        size = shard_bytes(self.model, rank, self.modules, self.tp, self.sharded)
        return recipe.pins * self.memory.pin_tensor_s + size / self.memory.pin_bytes_per_s

    def _disk_rate(self) -> float:
        """The slower of the scenario's disk and of reading and packing as measured."""
        if self.disk_bytes_per_s is None:
            return self.copies.disk_bytes_per_s * self._readers()  # each worker unpacks for itself
        return min(self.disk_bytes_per_s, self.copies.disk_bytes_per_s * self._readers())

    def _readers(self) -> int:
        return self.tp

    def _pairs(self) -> int:
        return sum(module_shape(self.model, module)[2] for module in self.modules)


def shard_bytes(model: ModelSpec, rank: int, modules: tuple[str, ...], tp: int, sharded: bool) -> int:
    """Bytes of one adapter that one GPU of a tensor-parallel group gets.

    Linears split by output keep A whole, linears split by input keep B whole, unless A and B are both split; key and
    value heads are replicated where there are fewer than GPUs. Embeddings are not split.
    """
    elements = 0
    for module in modules:
        width_in, width_out, copies = module_shape(model, module)
        elements += copies * rank * sum(_shard_widths(model, module, (width_in, width_out), tp, sharded))
    return elements * model.dtype_bytes


def _shard_widths(model: ModelSpec, module: str, widths: tuple[int, int], tp: int, sharded: bool) -> tuple[int, int]:
    width_in, width_out = widths
    if module in EMBEDDINGS:
        return widths
    if module in ROW_PARALLEL:
        return -(-width_in // tp), -(-width_out // tp) if sharded else width_out
    if module in ("k_proj", "v_proj"):
        out = max(model.num_key_value_heads // tp, 1) * model.head_dim
    else:
        out = -(-width_out // tp)
    return -(-width_in // tp) if sharded else width_in, out


def matrices(modules: tuple[str, ...], fused: bool) -> int:
    """A and B matrices of a layer; fused: q, k and v stacked into one of each, gate and up into another."""
    linear = [module for module in modules if module in ALL_LINEAR]
    if not fused:
        return 2 * len(linear)
    merged = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "gate_proj": "gate_up", "up_proj": "gate_up"}
    return 2 * len({merged.get(module, module) for module in linear})
