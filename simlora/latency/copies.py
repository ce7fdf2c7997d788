"""How long bringing an adapter into a slot blocks the step."""

from __future__ import annotations

from dataclasses import dataclass

from simlora.latency.calibration import CopyParameters
from simlora.latency.step import GPU, HOST
from simlora.scenario.lora_modules import adapter_bytes, module_shape
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
