"""Scenarios: YAML files (or mappings) become frozen, checked models with every default resolved."""

from __future__ import annotations

from simlora.scenario.adapters import AdaptersConfig
from simlora.scenario.cluster import ClusterConfig, RouterConfig
from simlora.scenario.engines import ENGINES, AnyEngine, EngineBase, EngineConfig, Speculative
from simlora.scenario.gpu_catalog import GPUS, builtin_gpu
from simlora.scenario.gpu_spec import GpuSpec
from simlora.scenario.load import changed, load_scenario, scenario_from_dict
from simlora.scenario.lora_modules import adapter_bytes
from simlora.scenario.model_catalog import MODELS, builtin_model
from simlora.scenario.model_spec import ModelSpec
from simlora.scenario.resources import CostConfig, RemoteStorage, SloConfig, StorageConfig
from simlora.scenario.root import Scenario
from simlora.scenario.schema import json_schema
from simlora.scenario.vllm_args import FromVllmArgs, scenario_from_vllm_args
from simlora.scenario.workload import Trace, WorkloadConfig

__all__ = [
    "ENGINES",
    "GPUS",
    "MODELS",
    "AdaptersConfig",
    "AnyEngine",
    "ClusterConfig",
    "CostConfig",
    "EngineBase",
    "EngineConfig",
    "FromVllmArgs",
    "GpuSpec",
    "ModelSpec",
    "RemoteStorage",
    "RouterConfig",
    "Scenario",
    "SloConfig",
    "Speculative",
    "StorageConfig",
    "Trace",
    "WorkloadConfig",
    "adapter_bytes",
    "builtin_gpu",
    "builtin_model",
    "changed",
    "json_schema",
    "load_scenario",
    "scenario_from_dict",
    "scenario_from_vllm_args",
]
