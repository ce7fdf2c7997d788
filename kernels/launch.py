"""How kernels are launched: interpreter, programmatic dependent launch, multiprocessor count."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton

INTERPRET: bool = bool(triton.knobs.runtime.interpret)
"""True where Triton's interpreter runs the kernels on the CPU (TRITON_INTERPRET=1 at import)."""

if INTERPRET:
    from .interpreter import repair

    repair()


@cache
def multiprocessors(device_index: int) -> int:
    """Streaming multiprocessors of a CUDA device; 4 under the interpreter, which runs programs one by one."""
    if INTERPRET or not torch.cuda.is_available():
        return 4
    return int(torch.cuda.get_device_properties(device_index).multi_processor_count)


@cache
def dependent_launch(device_index: int) -> bool:
    """True on compute capability 9.0 and newer, which can start a kernel before its predecessor has ended."""
    if INTERPRET or not torch.cuda.is_available():
        return False
    return bool(torch.cuda.get_device_capability(device_index)[0] >= 9)


def device_index(tensor: torch.Tensor) -> int:
    """Index of a tensor's CUDA device; 0 for a CPU tensor."""
    return tensor.device.index or 0


def options(num_warps: int, num_stages: int, pdl: bool, maxnreg: int | None = None) -> dict[str, Any]:
    """Launch options for a kernel call; the interpreter takes none."""
    if INTERPRET:
        return {}
    chosen: dict[str, Any] = {"num_warps": num_warps, "num_stages": num_stages, "launch_pdl": pdl}
    if maxnreg:
        chosen["maxnreg"] = maxnreg
    return chosen


def cdiv(a: int, b: int) -> int:
    """Ceiling division."""
    return -(-a // b)


def power_of_two(value: int) -> int:
    """Smallest power of two that is not below `value` (value >= 1)."""
    return 1 << (value - 1).bit_length()
