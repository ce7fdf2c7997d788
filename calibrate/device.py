"""What is measured on: GPU, host and software, and whether the GPU can be measured at all."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from simlora.errors import SimloraError
from simlora.latency.store import shipped

OLDEST_CAPABILITY = (8, 0)
"""bfloat16 tensor cores and asynchronous copies, which every kernel here takes for granted."""
DRY_GPU = "dry-run"
PACKAGES = ("torch", "triton", "vllm", "sglang", "flash-attn", "safetensors", "numpy")


@dataclass(frozen=True)
class Facts:
    """Where samples were taken. `id` tells machines and software apart, not runs: the same setup keeps its id."""

    gpu: str
    """Name as the driver gives it."""
    capability: tuple[int, int]
    gpus: int
    sm_count: int
    l2_bytes: int
    memory_bytes: int
    driver: str
    host_cpu: str
    host_cores: int
    system: str
    versions: dict[str, str]
    date: str
    """UTC, ISO 8601."""
    command: str

    @property
    def id(self) -> str:
        host = "".join(c if c.isalnum() else "-" for c in f"{self.gpu}-x{self.gpus}-{self.host_cpu}".lower())
        software = [f"{name}{self.versions[name]}" for name in ("torch", "vllm", "sglang") if name in self.versions]
        return "-".join(part for part in (*host.split("-"), *software) if part)

    def as_row(self) -> dict[str, Any]:
        """JSON form, one entry of provenance.json."""
        return {
            "id": self.id, "gpu": self.gpu, "capability": ".".join(map(str, self.capability)), "gpus": self.gpus,
            "sm_count": self.sm_count, "l2_bytes": self.l2_bytes, "memory_bytes": self.memory_bytes,
            "driver": self.driver, "host_cpu": self.host_cpu, "host_cores": self.host_cores, "system": self.system,
            "versions": self.versions, "date": self.date, "command": self.command,
        }  # fmt: skip


def require_gpu() -> None:
    """Raise SimloraError, naming the shipped calibrations, where this machine cannot be measured."""
    found = _obstacle()
    if found:
        ready = ", ".join(shipped()) or "none"
        raise SimloraError(
            f"simlora calibrate needs torch, triton and a CUDA GPU of compute capability 8.0 or later: {found}. "
            f"Calibrations that come with simlora: {ready}"
        )


def _obstacle() -> str:
    """Why nothing can be measured here; empty where it can."""
    for package in ("torch", "triton"):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed (pip install 'simlora[gpu]')"
    import torch

    if not torch.cuda.is_available():
        return "torch finds no CUDA GPU"
    capability = torch.cuda.get_device_capability(0)
    if capability < OLDEST_CAPABILITY:
        return f"{torch.cuda.get_device_name(0)} has compute capability {capability[0]}.{capability[1]}"
    return ""


def gpu_facts(argv: Sequence[str] | None = None) -> Facts:
    """Facts of the first CUDA device and its host."""
    import torch

    properties = torch.cuda.get_device_properties(0)
    return Facts(
        gpu=torch.cuda.get_device_name(0),
        capability=torch.cuda.get_device_capability(0),
        gpus=torch.cuda.device_count(),
        sm_count=int(properties.multi_processor_count),
        l2_bytes=int(properties.L2_cache_size),
        memory_bytes=int(properties.total_memory),
        driver=_driver(),
        **_host(argv),
    )


def cpu_facts(argv: Sequence[str] | None = None) -> Facts:
    """Facts of a dry run without a GPU: its samples say nothing about one."""
    return Facts(DRY_GPU, (0, 0), 8, 1, 2**20, 2**30, "none", **_host(argv))


def _host(argv: Sequence[str] | None) -> dict[str, Any]:
    return {
        "host_cpu": _cpu_model(),
        "host_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "versions": versions(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": _command(sys.argv if argv is None else argv),
    }


def _command(argv: Sequence[str]) -> str:
    program = Path(argv[0]).name if argv else ""
    return " ".join(["python -m simlora.calibrate" if program == "__main__.py" else program, *argv[1:]])


def versions() -> dict[str, str]:
    """Versions of what is installed of the packages whose kernels or runtime matter."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            if importlib.util.find_spec(package.replace("-", "_")) is not None:
                found[package] = _imported_version(package.replace("-", "_"))
    if "torch" in found:
        import torch

        found["torch"] = torch.__version__
        found["cuda"] = str(torch.version.cuda)
    return found


def _imported_version(module: str) -> str:
    """Version of a package that lies on the path without having been installed."""
    try:
        return str(getattr(importlib.import_module(module), "__version__", "unknown"))
    except Exception:  # whatever a half-installed package raises
        return "unknown"


def _cpu_model() -> str:
    """Model name; virtual machines often hide it, then family and model number stand in."""
    path = Path("/proc/cpuinfo")
    if not path.is_file():
        return platform.processor() or platform.machine()
    lines = (line.partition(":") for line in path.read_text().splitlines())
    fields = {key.strip(): value.strip() for key, _, value in lines}
    name = fields.get("model name", "")
    if name and name.lower() != "unknown":
        return name
    vendor, family, model = (fields.get(key, "unknown") for key in ("vendor_id", "cpu family", "model"))
    return f"{vendor} family {family} model {model} ({platform.machine()})"


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return (done.stdout.strip().splitlines() or ["unknown"])[0]
