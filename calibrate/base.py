"""The calibration whose engine terms a campaign keeps: the nearest shipped one, carried over to the measured GPU."""

from __future__ import annotations

from dataclasses import dataclass

from simlora.latency.calibration import Calibration
from simlora.latency.store import choose_calibration
from simlora.scenario.gpu import GpuSpec

DEFAULT_VERSION = "0.20"


@dataclass(frozen=True)
class Loading:
    """Adapters as vLLM loads them."""

    overlap: bool = False
    pinned: bool = True
    prefetch: bool = False


@dataclass(frozen=True)
class Engine:
    """What a calibration is chosen by, and defaults for the rest of an engine's settings."""

    version: str = DEFAULT_VERSION
    kind: str = "vllm"
    enable_lora: bool = True
    tensor_parallel_size: int = 1
    max_loras: int = 1
    max_lora_rank: int = 16
    max_cpu_loras: int = 1
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    enforce_eager: bool = False
    specialize_active_lora: bool = False
    fully_sharded_loras: bool = False
    endpoint: str = "http"
    kernels: str = "padded"
    pipeline_parallel_size: int = 1
    adapter_loading: Loading = Loading()


def base_calibration(gpu: GpuSpec, name_or_path: str | None = None, version: str = DEFAULT_VERSION) -> Calibration:
    """Raises ConfigError for a name or file that does not exist, or where nothing is shipped."""
    return choose_calibration(gpu, Engine(version=version), name_or_path)
