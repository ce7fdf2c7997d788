"""What every measurement works with: device, timer, and rules for buffers that L2 must not hold."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .sampling import CudaTimer, HostTimer, Run, Stats, Timer
from .session import SkipItemError

Row = dict[str, Any]
"""A sample, or {"note": text} where a point could not be measured."""
Rows = Iterator[Row]

COLD_FACTOR = 4
"""Working set over L2 size from which nothing of the last pass is left in L2 when the next begins."""
MOST_COPIES = 64


@dataclass(frozen=True)
class Bench:
    """One machine to measure. memory_bytes: what buffers may take together. folder: where files may be written."""

    device: str
    timer: Timer
    dtype: torch.dtype
    memory_bytes: int
    l2_bytes: int
    folder: Path

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu"

    def normal(self, *shape: int, scale: float = 1.0) -> torch.Tensor:
        """Random values: zeros would flatter kernels that power limits slow down."""
        return torch.randn(*shape, device=self.device, dtype=self.dtype).mul_(scale)

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.empty(*shape, device=self.device, dtype=dtype or self.dtype)

    def copies(self, size_bytes: float, least: int = 2) -> int:
        """How many distinct buffers of a size make a pass over all of them miss L2, within the memory."""
        wanted = math.ceil(COLD_FACTOR * self.l2_bytes / max(size_bytes, 1.0))
        fitting = int(0.5 * self.memory_bytes / max(size_bytes, 1.0))
        return max(1, min(max(wanted, least), fitting, MOST_COPIES))

    def require_memory(self, size_bytes: float) -> None:
        """Raise SkipItemError where buffers of that size do not fit."""
        if size_bytes > self.memory_bytes:
            need, have = size_bytes / 2**30, self.memory_bytes / 2**30
            raise SkipItemError(f"needs {need:.1f} GiB of device memory, {have:.1f} GiB are free")

    def release(self) -> None:
        """Give unused memory back between items."""
        if self.on_gpu:
            torch.cuda.empty_cache()

    def healthy(self) -> bool:
        """False after an error that leaves the GPU unusable for this process."""
        if not self.on_gpu:
            return True
        try:
            torch.cuda.synchronize()
            torch.ones(1, device=self.device).item()
        except RuntimeError:
            return False
        return True


def gpu_bench(folder: Path) -> Bench:
    """The first CUDA device, with nine tenths of the memory that is free now."""
    free, _ = torch.cuda.mem_get_info()
    l2_bytes = int(torch.cuda.get_device_properties(0).L2_cache_size)
    return Bench("cuda", CudaTimer(l2_bytes), torch.bfloat16, int(0.9 * free), l2_bytes, folder)


def dry_bench(folder: Path) -> Bench:
    """The CPU: every measurement's code with tiny shapes, for tests and for a look at a plan."""
    return Bench("cpu", HostTimer(), torch.bfloat16, 2**28, 2**14, folder)


def row(op: str, result: Stats, **sizes: Any) -> Row:
    """A sample without its provenance."""
    return {"op": op, **sizes, "unit": "s", **result._asdict()}


def measured(op: str, time: Any, run: Run, calls: int = 1, **sizes: Any) -> Row:
    """Time `run` by one of a timer's methods, as a sample; a note where it fails for want of support or memory."""
    try:
        return row(op, time(run, calls), **sizes)
    except (RuntimeError, ValueError, TypeError, NotImplementedError, ImportError) as failed:
        return {"note": f"{op} {sizes}: {type(failed).__name__}: {str(failed)[:160]}"}
