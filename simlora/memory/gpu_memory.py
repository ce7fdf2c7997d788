"""How many bytes a GPU has, and how many PyTorch's caching allocator really takes for tensors that are never freed.

The allocator serves a request from the smallest free block that is large enough, and asks the driver for a new segment
where there is none. What is left of a block returns to the free list only above a threshold, so some of it stays with
the tensor. On LoRA slots this is not small: 128 slots of rank 8 of Qwen2.5-7B hold 5.17 GB and occupy 6.05 GB.
Source of the rules: c10/cuda/CUDACachingAllocator (round_size, get_allocation_size, should_split), torch 2.x defaults.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from simlora.scenario.gpu import GpuSpec

MIB = 2**20

_GRANULE = 512
_SMALL_LIMIT = MIB
_SMALL_SEGMENT = 2 * MIB
_MEDIUM_LIMIT = 10 * MIB
_MEDIUM_SEGMENT = 20 * MIB
_LARGE_GRANULE = 2 * MIB


class CachingAllocator:
    """Counts bytes; holds no memory. Requests are in bytes and of any size above zero."""

    def __init__(self) -> None:
        self.allocated_bytes = 0
        """Sum over the blocks in use, rounding included: torch.cuda.memory_allocated."""
        self.reserved_bytes = 0
        """Sum over the segments taken from the driver: torch.cuda.memory_reserved."""
        self._free_small: list[int] = []
        self._free_large: list[int] = []

    def allocate(self, size_bytes: int) -> None:
        """Place one tensor."""
        size = _round_up(max(size_bytes, 1), _GRANULE)
        small = size <= _SMALL_LIMIT
        free = self._free_small if small else self._free_large
        position = bisect_left(free, size)
        if position < len(free):
            block = free.pop(position)
        else:
            block = _segment_bytes(size)
            self.reserved_bytes += block
        rest = block - size
        if rest >= _GRANULE if small else rest > _SMALL_LIMIT:
            insort(free, rest)
            block = size
        self.allocated_bytes += block

    def allocate_all(self, sizes_bytes: Iterable[int]) -> None:
        """Place tensors in order; the order decides which of them share a segment."""
        for size in sizes_bytes:
            self.allocate(size)


def _segment_bytes(size: int) -> int:
    if size <= _SMALL_LIMIT:
        return _SMALL_SEGMENT
    return _MEDIUM_SEGMENT if size < _MEDIUM_LIMIT else _round_up(size, _LARGE_GRANULE)


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


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
