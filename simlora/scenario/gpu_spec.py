"""Datasheet values of one GPU. Measured values belong to a calibration, not here."""

from __future__ import annotations

from dataclasses import dataclass

HOST_LINKS: dict[str, float] = {"pcie3": 16e9, "pcie4": 32e9, "pcie5": 64e9, "nvlink-c2c": 450e9}
"""Bytes per second in one direction: x16 lanes of PCI-SIG's 1, 2 and 4 GB/s, NVIDIA's 900 GB/s both ways for C2C."""


@dataclass(frozen=True)
class GpuSpec:
    """One GPU of a server. Rates are peak values of the vendor's datasheet, dense, in one direction."""

    name: str
    architecture: str
    memory_bytes: int
    """What the driver reports as total, not the marketing figure."""
    hbm_bytes_per_s: float
    bf16_flops: float
    """Dense BF16 with float32 accumulation, per second."""
    host_link: str
    host_link_bytes_per_s: float
    gpu_link_bytes_per_s: float
    """To the other GPUs of the server, one direction; PCIe where there is no NVLink."""
    sm_count: int
    price_hour_usd: float
    """Default list price per GPU-hour; dated in the catalogue."""
    source: str

    @property
    def memory_gib(self) -> float:
        return self.memory_bytes / 2**30
