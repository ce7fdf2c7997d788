"""What a campaign starts from: the GPU as the catalogue knows it, and the calibration whose engine terms are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simlora.latency.calibration import Calibration, GpuId
from simlora.latency.scaling import gpu_id
from simlora.latency.store import choose_calibration
from simlora.scenario.gpu import HOST_LINKS, GpuSpec, builtin_gpu

from .fitting.samples import of_op

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
    speculative: None = None


def base_calibration(gpu: GpuSpec, name_or_path: str | None = None, version: str = DEFAULT_VERSION) -> Calibration:
    """Raises ConfigError for a name or file that does not exist, or where nothing is shipped."""
    return choose_calibration(gpu, Engine(version=version), name_or_path)


ARCHITECTURES = {"8.0": "ampere", "8.6": "ampere", "8.7": "ampere", "8.9": "ada", "9.0": "hopper"}
NEWER = "blackwell"
"""Compute capability 10 and later."""
USUAL_MEMORY_FRACTION, USUAL_FLOPS_FRACTION = 0.9, 0.75
"""Shares of a datasheet's rates that element-wise kernels and large GEMMs reach."""
MEMORY_TOLERANCE = 0.1
Row = Mapping[str, Any]


def catalogue_gpu(facts: Row) -> GpuSpec | None:
    """The catalogue's entry for a driver's name ("NVIDIA A100-SXM4-80GB"), if it has the same multiprocessors."""
    words = str(facts["gpu"]).lower().replace("nvidia", " ").replace("geforce", " ").replace("-", " ").split()
    for count in range(len(words), 0, -1):
        for name in ("-".join(words[:count]), f"{'-'.join(words[:count])}-{_gigabytes(facts)}gb"):
            spec = builtin_gpu(name)
            if spec is not None and _same(spec, facts):
                return spec
    return None


def _gigabytes(facts: Row) -> int:
    return round(float(facts["memory_bytes"]) / 2**30)


def _same(spec: GpuSpec, facts: Row) -> bool:
    near = abs(spec.memory_bytes / facts["memory_bytes"] - 1.0) < MEMORY_TOLERANCE
    return near and bool(spec.sm_count == facts["sm_count"])


def measured_gpu(facts: Row, rows: Sequence[Row]) -> tuple[GpuSpec, str]:
    """(GPU, note where its nominal rates are guesses from what was measured)."""
    known = catalogue_gpu(facts)
    if known is not None:
        return known, ""
    moved = [row["bytes"] / row["p50"] for row in of_op(rows, "norm", "silu_mul")]
    work = [2.0 * row["inputs"] * row["outputs"] * row["tokens"] / row["p50"] for row in of_op(rows, "gemm")]
    name = "-".join(str(facts["gpu"]).lower().split())
    spec = GpuSpec(
        name=name,
        architecture=ARCHITECTURES.get(facts["capability"], NEWER),
        memory_bytes=facts["memory_bytes"],
        hbm_bytes_per_s=max(moved, default=1e12) / USUAL_MEMORY_FRACTION,
        bf16_flops=max(work, default=1e14) / USUAL_FLOPS_FRACTION,
        host_link="pcie4",
        host_link_bytes_per_s=HOST_LINKS["pcie4"],
        gpu_link_bytes_per_s=HOST_LINKS["pcie4"],
        sm_count=facts["sm_count"],
        price_hour_usd=0.0,
        source="measured by simlora calibrate",
    )
    return spec, f"{name} is not in the catalogue: its nominal rates are estimates from the samples, its links assumed"


def identity(spec: GpuSpec) -> GpuId:
    """The part of a GPU that a calibration is tied to."""
    return gpu_id(spec)
