"""The scenario as a whole: its sections, and what follows from all of them together."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from pydantic import Field, PrivateAttr, ValidationInfo, model_validator

from simlora.scenario.adapters import AdaptersConfig
from simlora.scenario.base import Config
from simlora.scenario.checks import check_scenario
from simlora.scenario.cluster import ClusterConfig
from simlora.scenario.defaults import resolve_sections
from simlora.scenario.engines import AnyEngine, EngineConfig
from simlora.scenario.gpu import GpuConfig
from simlora.scenario.gpu_spec import GpuSpec
from simlora.scenario.lora_modules import adapter_modules, slot_modules, supported_modules
from simlora.scenario.model_lookup import find_model
from simlora.scenario.model_spec import ModelSpec
from simlora.scenario.resources import CostConfig, SloConfig, StorageConfig
from simlora.scenario.unbuilt import drop_unbuilt
from simlora.scenario.versions import VersionRules
from simlora.scenario.workload import WorkloadConfig

DEFAULT_GPU = "h200-141gb"
ARGUMENTS = "<arguments>"
"""Source of a scenario that does not come from a file."""


class Scenario(Config):
    """Everything that one simulation needs. Once loaded, no default is left open. Build it with load_scenario."""

    name: str = Field(default="scenario", min_length=1, max_length=200, description="Name in reports")
    seed: int = Field(default=1, ge=0, le=2**63 - 1, description="Seed of all random streams")
    model: str = Field(min_length=1, description="Built-in name, Hugging Face id of one, or path of a config.json")
    gpu: GpuConfig = Field(default=GpuConfig(name=DEFAULT_GPU), description="GPU name, or {name, overrides}")
    calibration: str | None = Field(
        default=None, min_length=1, description="Calibration by name or path; null: the best match for engine and GPU"
    )
    engine: AnyEngine = Field(default=EngineConfig(), description="The engine of each replica")
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
        self._model_spec = find_model(self.model, self._folder, self.rules)
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
    def rules(self) -> VersionRules:
        """Models and modules that the engine supports."""
        return self.engine.rules

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
        supported = supported_modules(self.model_spec, self.rules.expert_lora)
        return slot_modules(self.engine.lora_target_modules, self.adapter_modules, supported)

    def to_dict(self) -> dict[str, Any]:
        """All values, defaults resolved, ready for JSON; scenario_from_dict gives an equal scenario back."""
        return self.model_dump(mode="json")

    def path(self, relative: str) -> Path:
        """A path of the scenario (trace, lengths): relative ones start at the scenario file's folder."""
        return self._folder / Path(relative).expanduser()
