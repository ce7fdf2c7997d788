"""Every measurement by name: what a plan's items call."""

from __future__ import annotations

from collections.abc import Callable

from .bench import Bench, Row, Rows
from .measure_attention import decode_attention, prefill_attention
from .measure_collectives import collectives
from .measure_copies import adapter_loads, block_copies, copies_under_compute
from .measure_disk import adapter_reads
from .measure_launch import calls, host_yardstick, launches, views, waits
from .measure_lora import lora_steps
from .measure_operators import dense_steps, elementwise, gemms
from .plan import Item

FUNCTIONS: dict[str, Callable[..., Rows]] = {
    function.__name__: function
    for function in (
        host_yardstick, launches, dense_steps, gemms, elementwise, decode_attention, prefill_attention, lora_steps,
        block_copies, copies_under_compute, adapter_loads, adapter_reads, collectives, views, waits, calls,
    )
}  # fmt: skip


def measure(bench: Bench, item: Item) -> list[Row]:
    """All samples and notes of one item. Raises SkipItemError, or whatever the GPU stack raises."""
    bench.release()
    try:
        return list(FUNCTIONS[item.function](bench, **item.arguments))
    finally:
        bench.release()
