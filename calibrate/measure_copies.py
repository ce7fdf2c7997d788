"""Host-to-device copies: blocks of memory, blocks under compute, and whole adapters into slots."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from .adapters import Pair, host_adapter, slot_buffers
from .bench import Bench, Row, Rows, measured, row
from .grid import model_named
from .sampling import WARMUPS, repeat, stats

COPIES_ON_SIDE = 4
FASTEST_LINK = 60e9
"""Bytes a second that no PCIe link exceeds: how many copies outlast a compute."""
PATIENCE_S = 0.5
SLOTS = 2


def block_copies(bench: Bench, sizes: tuple[int, ...]) -> Rows:
    """One block of pinned or pageable memory, and two pinned ones on two streams at once; bytes are those of all."""
    for size in sizes:
        target = bench.empty(size, dtype=torch.uint8)
        for memory in ("pinned", "pageable"):
            source = _host_block(bench, size, pinned=memory == "pinned")
            run = _copy(target, source)
            yield measured("h2d", bench.timer.wall, run, memory=memory, bytes=size, streams=1)
        if bench.on_gpu:
            yield _two_streams(bench, size)


def _host_block(bench: Bench, size: int, pinned: bool) -> torch.Tensor:
    return torch.ones(size, dtype=torch.uint8, pin_memory=pinned and bench.on_gpu)


def _copy(target: torch.Tensor, source: torch.Tensor) -> Callable[[], object]:
    return lambda: target.copy_(source, non_blocking=True)


def _two_streams(bench: Bench, size: int) -> Row:
    streams = [torch.cuda.Stream() for _ in range(2)]
    blocks = [(bench.empty(size, dtype=torch.uint8), _host_block(bench, size, pinned=True)) for _ in streams]

    def run() -> None:
        for stream, (target, source) in zip(streams, blocks, strict=True):
            with torch.cuda.stream(stream):
                target.copy_(source, non_blocking=True)

    return measured("h2d", bench.timer.wall, run, memory="pinned", bytes=2 * size, streams=2)


def copies_under_compute(bench: Bench, sizes: tuple[int, ...]) -> Rows:
    """Pinned copies on a side stream while the main stream computes: time of the compute, alone and with copies."""
    if not bench.on_gpu:
        return
    for kind, compute in _loads(bench):
        for size in sizes:
            yield _overlapped(bench, kind, compute, size)


def _loads(bench: Bench) -> Iterator[tuple[str, Callable[[], None]]]:
    """Compute that is bound by arithmetic, and compute that is bound by reading weights, as decode steps are."""
    square = bench.normal(8192, 8192)
    few, out = bench.normal(16, 8192), bench.empty(16, 8192)
    weights = [bench.normal(8192, 8192) for _ in range(bench.copies(8192 * 8192 * bench.dtype.itemsize, least=4))]

    def arithmetic() -> None:
        for _ in range(16):
            torch.mm(square, square)

    def streaming() -> None:
        for _ in range(60):
            for weight in weights:
                torch.mm(few, weight, out=out)

    yield "arithmetic", arithmetic
    yield "streaming", streaming


def _overlapped(bench: Bench, kind: str, compute: Callable[[], None], size: int) -> Row:
    """Time of the compute while copies that outlast it go on beside it, in turn with the same alone: clocks drift."""
    target, source = bench.empty(size, dtype=torch.uint8), _host_block(bench, size, pinned=True)
    side = torch.cuda.Stream()
    for _ in range(WARMUPS):
        alone_s = _compute_s(compute, side, lambda: None)
    copies = max(COPIES_ON_SIDE, int(alone_s * FASTEST_LINK / size) + 1)

    def copy() -> None:
        for _ in range(copies):
            target.copy_(source, non_blocking=True)

    alone = []

    def busy() -> float:
        alone.append(_compute_s(compute, side, lambda: None))
        return _compute_s(compute, side, copy)

    times = stats(repeat(busy, PATIENCE_S))
    base_s = stats(alone).p50
    sizes = {"compute": kind, "bytes": size, "copies": copies, "alone_s": base_s, "slowdown": times.p50 / base_s}
    return row("compute_under_h2d", times, **sizes)


def _compute_s(compute: Callable[[], None], side: torch.cuda.Stream, beside: Callable[[], None]) -> float:
    """GPU time from the start of the compute to its end, with `beside` on the side stream."""
    torch.cuda.synchronize()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(side):
        beside()
    begin.record()
    compute()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def adapter_loads(bench: Bench, model: str, rank: int, slot_rank: int) -> Rows:
    """An adapter into a slot: module by module with zero fills, from pinned and pageable memory, and as one block."""
    spec = model_named(model)
    slots = slot_buffers(bench, spec, slot_rank, SLOTS)
    size = sum(pair.a.numel() + pair.b.numel() for pair in slots) // SLOTS // slot_rank * rank * bench.dtype.itemsize
    sizes: dict[str, Any] = {
        "model": model,
        "tp": 1,
        "rank": rank,
        "slot_rank": slot_rank,
        "pairs": len(slots),
        "bytes": size,
    }
    for memory in ("pinned", "pageable"):
        adapter = host_adapter(bench, spec, rank, pinned=memory == "pinned")
        run = _into_slot(slots, adapter)
        yield measured("adapter_load", bench.timer.wall, run, layout="modules", memory=memory, **sizes)
        if memory == "pinned":
            yield measured("adapter_load_issue", bench.timer.host, run, layout="modules", memory=memory, **sizes)
    block, target = _host_block(bench, size, pinned=True), bench.empty(size, dtype=torch.uint8)
    yield measured("adapter_load", bench.timer.wall, _copy(target, block), layout="block", memory="pinned", **sizes)


def _into_slot(slots: list[Pair], adapter: list[Pair]) -> Callable[[], None]:
    """Per matrix, as vLLM does it: zero the slot at its full rank, then copy the adapter's own rows or columns."""

    def run() -> None:
        for slot, own in zip(slots, adapter, strict=True):
            slot.a[0].zero_()
            slot.b[0].zero_()
            slot.a[0, 0, : own.a.shape[0]].copy_(own.a, non_blocking=True)
            slot.b[0, 0, :, : own.b.shape[1]].copy_(own.b, non_blocking=True)

    return run
