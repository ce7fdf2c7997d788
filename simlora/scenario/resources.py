"""The keys `storage`, `slo` and `cost`."""

from __future__ import annotations

from pydantic import Field

from simlora.scenario.base import Config, auto


class RemoteStorage(Config):
    """Where adapters come from that are not on the replica's disk."""

    bandwidth_gib_s: float = Field(default=1.0, gt=0, le=1e4, description="GiB per second into one replica")
    latency_s: float = Field(default=0.05, ge=0, le=3600, description="Time to the first byte")


class StorageConfig(Config):
    """Memory and storage of one replica's host."""

    host_gib: float = Field(default=512.0, gt=0, le=1e6, description="Host memory of one replica for adapters")
    disk_gib_s: float | None = Field(
        default=None, gt=0, le=1e4, description="Disk bandwidth; null: reads take what the calibration measured"
    )
    remote: RemoteStorage | None = Field(
        default=None,
        description="Adapters start in remote storage and reach the disk at first use; null: all are on disk",
    )


class SloConfig(Config):
    """The service level objective. A request meets it when it completes within both limits."""

    ttft_s: float = Field(default=1.0, gt=0, le=1e6, description="Largest time to first token")
    tpot_s: float = Field(default=0.05, gt=0, le=1e6, description="Largest time per output token after the first")
    attainment: float = Field(default=0.99, gt=0, le=1, description="Share of offered requests that must meet both")


class CostConfig(Config):
    """Money."""

    gpu_hour_usd: float = auto("Price of one GPU-hour; null: the GPU's default list price", ge=0, le=1e5)
