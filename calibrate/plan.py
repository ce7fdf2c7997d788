"""A campaign as a list of items: what to measure, in which order, and how long it should take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .grid import Grid, LoraSet

PARTS = ("launch", "operators", "attention", "lora", "copies", "disk", "collectives")
LORA_FAMILIES = {"vllm": 0, "simlora": 1, "padded": 2, "sglang": 3, "bgmv": 3}
"""Kernel family -> priority. The LoRA term is fitted to vllm, or to padded where vLLM is not installed."""
MAIN_FAMILIES = ("vllm", "simlora")
SETS_OF_ALL = 4
"""The first so many sets are measured with every family, the rest with the main ones."""


@dataclass(frozen=True)
class Item:
    """One unit of work: what a session starts or leaves whole.

    function: name in measure.py's table. priority: 0 first; a fit of every term is possible after priority 1.
    seconds: expected on an H200, its own compilation included.
    """

    id: str
    part: str
    function: str
    priority: int
    seconds: float
    arguments: Mapping[str, Any] = field(default_factory=dict)
    gpus: int = 1


def build_plan(grid: Grid, parts: tuple[str, ...] = PARTS) -> list[Item]:
    """All items of a grid in the order in which they are run."""
    builders = (_launch, _operators, _attention, _lora, _copies, _disk, _collectives)
    items = [item for build in builders for item in build(grid) if item.part in parts]
    return sorted(items, key=lambda item: item.priority)


def _item(grid: Grid, path: str, function: str, priority: int, seconds: float, gpus: int = 1, **arguments: Any) -> Item:
    return Item(f"{grid.name}/{path}", path.split("/")[0], function, priority, seconds, arguments, gpus)


def _launch(grid: Grid) -> Iterator[Item]:
    yield _item(grid, "launch/host", "host_yardstick", 0, 1.0, calls=grid.calls)
    yield _item(grid, "launch/kernels", "launches", 0, 3.0, launches=grid.launches)
    yield _item(grid, "launch/views", "views", 0, 2.0, views=grid.launches)
    yield _item(grid, "launch/calls", "calls", 0, 1.0, calls=grid.launches)
    yield _item(grid, "launch/waits", "waits", 0, 2.0, reads=grid.launches)


def _operators(grid: Grid) -> Iterator[Item]:
    for model, sizes in grid.models:
        large = "70b" in model
        tokens = tuple(t for t in grid.tokens if not large or t <= grid.largest_70b_tokens)
        step_s, gemm_s = (0.2, 0.3) if large else (0.12, 0.12)
        for order, tp in enumerate(sizes):
            first, path = min(order, 1), f"operators/{model}/tp{tp}"
            shape: dict[str, Any] = {"model": model, "tp": tp, "tokens": tokens}
            yield _item(grid, f"{path}/steps", "dense_steps", first, 2.0 + len(tokens) * step_s, **shape)
            yield _item(grid, f"{path}/gemms", "gemms", first + 1, 0.5 + len(tokens) * gemm_s, **shape)
        path = f"operators/{model}/elementwise"
        yield _item(grid, path, "elementwise", 0, 2.0, model=model, tp=sizes[0], tokens=grid.tokens)


def _attention(grid: Grid) -> Iterator[Item]:
    decode: dict[str, Any] = {"requests": grid.decode_requests, "contexts": grid.decode_contexts}
    prefill: dict[str, Any] = {"chunks": grid.prefill_chunks, "starts": grid.prefill_starts}
    decode_s = 1.0 + 0.15 * len(grid.decode_requests) * len(grid.decode_contexts)
    prefill_s = 1.0 + 0.5 * len(grid.prefill_chunks) * len(grid.prefill_starts)
    for order, (model, tp) in enumerate(grid.attention_heads):
        path, priority = f"attention/{model}/tp{tp}", 2 * min(order, 1)
        heads: dict[str, Any] = {"model": model, "tp": tp}
        yield _item(grid, f"{path}/decode", "decode_attention", priority, decode_s, **heads, **decode)
        yield _item(grid, f"{path}/prefill", "prefill_attention", priority, prefill_s, **heads, **prefill)


def _lora(grid: Grid) -> Iterator[Item]:
    for order, chosen in enumerate(grid.lora_sets):
        seconds = 3.0 + sum(0.5 + 2e-4 * point["tokens"] for point in chosen.points)
        for family in grid.lora_families if order < SETS_OF_ALL else MAIN_FAMILIES:
            path, priority = f"lora/{lora_set_name(chosen)}/{family}", LORA_FAMILIES[family] + int(order >= 2)
            yield _item(grid, path, "lora_steps", priority, seconds, families=(family,), chosen=chosen)


def lora_set_name(chosen: LoraSet) -> str:
    ranks = "-".join(str(rank) for rank in chosen.ranks)
    return f"{chosen.model}/tp{chosen.tp}/slots{chosen.slots}x{chosen.slot_rank}/ranks{ranks}"


def _copies(grid: Grid) -> Iterator[Item]:
    model = grid.models[0][0]
    yield _item(grid, "copies/blocks", "block_copies", 0, 3.0, sizes=grid.copy_bytes)
    yield _item(grid, "copies/under-compute", "copies_under_compute", 1, 8.0, sizes=grid.copy_bytes[-3:])
    for rank, slot_rank in grid.load_ranks:
        path = f"copies/{model}/r{rank}-in-{slot_rank}"
        yield _item(grid, path, "adapter_loads", 1, 1.5 + 0.02 * rank, model=model, rank=rank, slot_rank=slot_rank)


def _disk(grid: Grid) -> Iterator[Item]:
    model = grid.models[0][0]
    for rank in grid.disk_ranks:
        yield _item(grid, f"disk/{model}/r{rank}", "adapter_reads", 1, 4.0 + 0.2 * rank, model=model, rank=rank)


def _collectives(grid: Grid) -> Iterator[Item]:
    for world in (2, 4, 8):
        arguments = {"world": world, "sizes": grid.collective_bytes}
        yield _item(grid, f"collectives/{world}", "collectives", 1, 25.0, gpus=world, **arguments)
