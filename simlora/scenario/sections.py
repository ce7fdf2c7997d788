"""What rules between keys read of a scenario: its sections and what follows from them, without the scenario itself."""

from __future__ import annotations

from typing import Any, Protocol

from pydantic import Field

from simlora.scenario.adapters import AdaptersConfig
from simlora.scenario.base import Config
from simlora.scenario.cluster import ClusterConfig
from simlora.scenario.gpu import GpuSpec
from simlora.scenario.model import ModelSpec
from simlora.scenario.workload import WorkloadConfig


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


class Sections(Protocol):
    """A Scenario, as the engines' schemas and the checks see it."""

    @property
    def model(self) -> str: ...
    @property
    def engine(self) -> Any: ...
    @property
    def adapters(self) -> AdaptersConfig: ...
    @property
    def workload(self) -> WorkloadConfig: ...
    @property
    def cluster(self) -> ClusterConfig: ...
    @property
    def storage(self) -> StorageConfig: ...
    @property
    def model_spec(self) -> ModelSpec: ...
    @property
    def gpu_spec(self) -> GpuSpec: ...
    @property
    def adapter_modules(self) -> tuple[str, ...]: ...
    @property
    def slot_modules(self) -> tuple[str, ...]: ...
