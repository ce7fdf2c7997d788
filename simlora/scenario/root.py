"""The scenario as a whole: its sections, and what follows from all of them together."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from pydantic import Field, PrivateAttr, ValidationInfo, model_validator

from simlora.errors import ARGUMENTS
from simlora.scenario.adapters import AdaptersConfig, ClassPopularity, ExplicitPopularity
from simlora.scenario.base import Config, WrongValueError, auto
from simlora.scenario.checks import check_scenario, drop_unbuilt
from simlora.scenario.cluster import ClusterConfig
from simlora.scenario.engines import AnyEngine
from simlora.scenario.engines.vllm import VllmConfig
from simlora.scenario.gpu import GpuConfig, GpuSpec
from simlora.scenario.lora_modules import adapter_modules, slot_modules, supported_modules
from simlora.scenario.model import ModelSpec
from simlora.scenario.model_lookup import find_model
from simlora.scenario.sections import StorageConfig
from simlora.scenario.workload import DeterministicArrivals, GammaArrivals, PoissonArrivals, WorkloadConfig


class SloConfig(Config):
    """The service level objective. A request meets it when it completes within both limits."""

    ttft_s: float = Field(default=1.0, gt=0, le=1e6, description="Largest time to first token")
    tpot_s: float = Field(default=0.05, gt=0, le=1e6, description="Largest time per output token after the first")
    attainment: float = Field(default=0.99, gt=0, le=1, description="Share of offered requests that must meet both")


class CostConfig(Config):
    """Money."""

    gpu_hour_usd: float = auto("Price of one GPU-hour; null: the GPU's default list price", ge=0, le=1e5)


DEFAULT_GPU = "h200-141gb"


class Scenario(Config):
    """Everything that one simulation needs. Once loaded, no default is left open. Build it with load_scenario."""

    name: str = Field(default="scenario", min_length=1, max_length=200, description="Name in reports")
    seed: int = Field(default=1, ge=0, le=2**63 - 1, description="Seed of all random streams")
    model: str = Field(min_length=1, description="Built-in name, Hugging Face id of one, or path of a config.json")
    gpu: GpuConfig = Field(default=GpuConfig(name=DEFAULT_GPU), description="GPU name, or {name, overrides}")
    calibration: str | None = Field(
        default=None, min_length=1, description="Calibration by name or path; null: the best match for engine and GPU"
    )
    engine: AnyEngine = Field(default=VllmConfig(), description="The engine of each replica")
    adapters: AdaptersConfig = Field(default=AdaptersConfig(), description="The adapters")
    workload: WorkloadConfig = Field(default=WorkloadConfig(), description="What clients send")
    cluster: ClusterConfig = Field(default=ClusterConfig(), description="Replicas and router")
    storage: StorageConfig = Field(default=StorageConfig(), description="Host memory and storage tiers")
    slo: SloConfig = Field(default=SloConfig(), description="Service level objective")
    cost: CostConfig = Field(default=CostConfig(), description="Prices")

    _source: str = PrivateAttr(default=ARGUMENTS)
    _folder: Path = PrivateAttr(default=Path())
    _raw: dict[str, Any] = PrivateAttr(default_factory=dict)
    _model_spec: ModelSpec = PrivateAttr()
    _gpu_spec: GpuSpec = PrivateAttr()

    @model_validator(mode="before")
    @classmethod
    def _only_built(cls, data: Any) -> Any:
        return drop_unbuilt(data) if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _resolve(self, info: ValidationInfo) -> Scenario:
        context: dict[str, Any] = info.context or {}
        self._source = context.get("source", ARGUMENTS)
        self._folder = context.get("folder", Path())
        self._raw = self.model_dump(mode="json", exclude_unset=True)
        self._gpu_spec = self.gpu.resolve()
        self._model_spec = find_model(self.model, self._folder, self.engine.model_support)
        for name, section in resolve_sections(self).items():
            self.__dict__[name] = section  # frozen from here on
        check_scenario(self)
        return self

    @property
    def source(self) -> str:
        """File name for messages, or "<arguments>"."""
        return self._source

    @property
    def model_spec(self) -> ModelSpec:
        """Dimensions of the model."""
        return self._model_spec

    @property
    def gpu_spec(self) -> GpuSpec:
        """Datasheet values of the GPU, overrides in place."""
        return self._gpu_spec

    @property
    def raw(self) -> dict[str, Any]:
        """A copy of what the user wrote, before defaults."""
        return copy.deepcopy(self._raw)

    @property
    def folder(self) -> Path:
        """Where relative paths start."""
        return self._folder

    @property
    def gpus_per_replica(self) -> int:
        """GPUs of one replica."""
        return self.engine.tensor_parallel_size * self.engine.pipeline_parallel_size

    @property
    def adapter_modules(self) -> tuple[str, ...]:
        """Modules that the adapters hold."""
        return adapter_modules(self.adapters.target_modules)

    @property
    def slot_modules(self) -> tuple[str, ...]:
        """Modules that every slot holds GPU memory for."""
        supported = supported_modules(self.model_spec, self.engine.model_support.expert_lora)
        return slot_modules(self.engine.lora_target_modules, self.adapter_modules, supported)

    def to_dict(self) -> dict[str, Any]:
        """All values, defaults resolved, ready for JSON; scenario_from_dict gives an equal scenario back."""
        return self.model_dump(mode="json")

    def path(self, relative: str) -> Path:
        """A path of the scenario (trace, lengths): relative ones start at the scenario file's folder."""
        return self._folder / Path(relative).expanduser()


DEFAULT_RATE_RPS = 1.0
DEFAULT_RANK = 16
_RATE_TOLERANCE = 1e-3
"""How far a given arrival rate may be from the sum of explicit rates (relative): rounding."""


def resolve_sections(scenario: Scenario) -> dict[str, Config]:
    """The sections whose defaults depend on others, resolved. The scenario's own sections are not modified."""
    adapters = scenario.adapters.filled(count=_count(scenario))
    if "ranks" not in adapters.model_fields_set:
        most = scenario.engine.max_lora_rank or DEFAULT_RANK  # null: an engine that sizes itself for the adapters
        adapters = adapters.model_copy(update={"ranks": {min(DEFAULT_RANK, most): 1.0}})
    if adapters.count == 0:  # no adapter can be asked for
        adapters = adapters.model_copy(update={"base_fraction": 1.0})
    return {
        "engine": scenario.engine.resolved(scenario),
        "adapters": adapters,
        "workload": _workload(scenario, adapters),
        "cost": scenario.cost.filled(gpu_hour_usd=scenario.gpu_spec.price_hour_usd),
    }


def _count(scenario: Scenario) -> int:
    popularity = scenario.adapters.popularity
    if not scenario.engine.enable_lora:
        return 0
    if isinstance(popularity, ExplicitPopularity):
        return len(popularity.rates_rps)
    if isinstance(popularity, ClassPopularity):
        return sum(item.count for item in popularity.classes)
    return 1


def _workload(scenario: Scenario, adapters: AdaptersConfig) -> Any:
    arrivals, popularity = scenario.workload.arrivals, adapters.popularity
    if not isinstance(arrivals, (PoissonArrivals, GammaArrivals, DeterministicArrivals)):
        return scenario.workload
    rate = DEFAULT_RATE_RPS
    if isinstance(popularity, ExplicitPopularity) and adapters.base_fraction < 1:
        rate = sum(popularity.rates_rps) / (1 - adapters.base_fraction)
        if arrivals.rate_rps is not None and abs(arrivals.rate_rps / rate - 1) > _RATE_TOLERANCE:
            raise WrongValueError(
                "workload.arrivals.rate_rps",
                arrivals.rate_rps,
                f"must be left out or equal the sum of adapters.popularity.rates_rps over 1 - base_fraction ({rate:g})",
            )
    return scenario.workload.model_copy(update={"arrivals": arrivals.filled(rate_rps=rate)})
