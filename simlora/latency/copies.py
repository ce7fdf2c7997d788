"""How long bringing an adapter into a slot blocks the step."""

from __future__ import annotations

from dataclasses import dataclass

from simlora.latency.calibration import CopyParameters
from simlora.latency.shapes import adapter_bytes, adapter_modules
from simlora.latency.step import GPU, HOST
from simlora.scenario.model_spec import ModelSpec


@dataclass(frozen=True)
class Copies:
    """Load times of one model's adapters; every tensor-parallel rank loads its shard of the same file at once."""

    parameters: CopyParameters
    model: ModelSpec
    tp: int
    slot_rank: int

    def load_s(self, rank: int, tier: str) -> float:
        """Seconds that the step waits for an adapter of `rank` in `tier`. Fetching from remote storage is not in it."""
        if tier == GPU:
            return 0.0
        to_slot = self._to_slot_s(rank)
        return to_slot if tier == HOST else to_slot + self._read_s(rank)

    def _to_slot_s(self, rank: int) -> float:
        p = self.parameters
        per_module = p.module_s + (p.mismatch_module_s if rank < self.slot_rank else 0.0)
        return adapter_modules(self.model) * per_module + adapter_bytes(self.model, rank, self.tp) / p.bytes_per_s

    def _read_s(self, rank: int) -> float:
        p = self.parameters
        return adapter_modules(self.model) * p.disk_module_s + adapter_bytes(self.model, rank) / p.disk_bytes_per_s
