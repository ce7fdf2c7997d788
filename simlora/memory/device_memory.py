"""The memory of a GPU that CUDA reports as total: what gpu_memory_utilization multiplies."""

from __future__ import annotations

from simlora.memory.torch_allocator import MIB
from simlora.scenario.gpu import GpuSpec

_HIDDEN_FIXED_BYTES = 370 * MIB
_HIDDEN_FRACTION = 0.0019
"""cudaMemGetInfo's total is below nvidia-smi's: by 317 MiB of 24,576 (RTX 3090, 23.69 GiB), 469 to 550 of 81,559 (H100,
79.19 and 79.11 GiB), 616 of 143,771 (H200, 139.80 GiB) and 719 of 183,359 (B200, 178.36 GiB). Sources: totals in
out-of-memory messages and vLLM logs of public issue threads; the line is fitted to them."""

_DRIVER_BYTES = {
    ("h100-64gb", 65_536 * MIB): 65_247 * MIB,
    ("h100-80gb", 81_920 * MIB): 81_559 * MIB,
}
"""What nvidia-smi shows where the catalogue has another figure (nominal, or a cloud's)."""


def cuda_total_bytes(gpu: GpuSpec) -> int:
    """Total of cudaMemGetInfo in bytes, within 0.2 % of the measured parts listed above."""
    driver = _DRIVER_BYTES.get((gpu.name, gpu.memory_bytes), gpu.memory_bytes)
    return int(driver * (1 - _HIDDEN_FRACTION)) - _HIDDEN_FIXED_BYTES
