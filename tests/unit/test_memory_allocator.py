"""PyTorch's block rounding: the rules, and what they do to stacked slots."""

from __future__ import annotations

from simlora.memory.gpu_memory import MIB, CachingAllocator


def placed(*sizes: int) -> CachingAllocator:
    allocator = CachingAllocator()
    allocator.allocate_all(sizes)
    return allocator


def test_small_tensors_share_segments_of_2_mib() -> None:
    allocator = placed(1, 513, MIB)
    assert allocator.allocated_bytes == 512 + 1024 + MIB
    assert allocator.reserved_bytes == 2 * MIB
    allocator.allocate(MIB)
    assert allocator.reserved_bytes == 4 * MIB


def test_medium_tensors_share_segments_of_20_mib() -> None:
    allocator = placed(*[4 * MIB] * 5)
    assert allocator.allocated_bytes == allocator.reserved_bytes == 20 * MIB
    allocator.allocate(4 * MIB)
    assert allocator.reserved_bytes == 40 * MIB


def test_a_rest_of_up_to_1_mib_stays_with_the_tensor() -> None:
    assert placed(11 * MIB).allocated_bytes == 12 * MIB
    assert placed(11 * MIB - 512).allocated_bytes == 11 * MIB - 512  # more than 1 MiB is left, so the block is split
    assert placed(11 * MIB - 512).reserved_bytes == 12 * MIB


def test_the_smallest_free_block_that_fits_is_taken() -> None:
    allocator = placed(13 * MIB, 2 * MIB)  # a segment of 14 MiB without rest, then one of 20 MiB with 18 left
    assert allocator.reserved_bytes == 34 * MIB
    allocator.allocate(10 * MIB - 512)
    assert allocator.reserved_bytes == 34 * MIB


def test_equal_products_of_rank_and_slots_take_equal_memory() -> None:
    """Why 8 slots of rank 32 and 32 slots of rank 8 leave byte-identical KV pools."""
    widths = (3584, 512, 18944)
    pools = [placed(*[2 * rank * slots * width for width in widths]) for rank, slots in ((8, 32), (16, 16), (32, 8))]
    assert len({pool.reserved_bytes for pool in pools}) == 1
