"""One process of a collective measurement.

python -m simlora.calibrate.collective_worker RANK WORLD PORT TARGET DEVICE SIZE...

The first process writes its samples to TARGET as JSON. DEVICE cpu runs the same through gloo, for tests.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from .bench import row
from .sampling import FEWEST_REPEATS, Run, Stats, capture, repeat, stats

CALLS = 16
"""Collectives timed in a row: one alone would measure how far the processes are apart."""
TIMEOUT = timedelta(seconds=60)
Timed = Callable[[Run], tuple[str, Stats]]


def main(argv: Sequence[str]) -> None:
    """Measure as one of `world` processes."""
    rank, world, port, target, device = int(argv[0]), int(argv[1]), argv[2], Path(argv[3]), argv[4]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if device == "cuda" else "gloo", rank=rank, world_size=world, timeout=TIMEOUT)
    timers: tuple[Timed, ...] = (graph_times, event_times) if device == "cuda" else (host_times,)
    sizes = [int(size) for size in argv[5:]]
    try:
        rows = [found for timed in timers for found in measure_sizes(world, sizes, device, timed)]
    finally:
        dist.destroy_process_group()
    if rank == 0:
        target.write_text(json.dumps(rows))


def measure_sizes(world: int, sizes: Sequence[int], device: str, timed: Timed) -> list[dict[str, Any]]:
    """All-reduce and all-gather over sizes; bytes: the whole buffer on one GPU."""
    rows = []
    for size in sizes:
        whole = torch.ones(max(size // 2, world), dtype=torch.bfloat16, device=device)
        whole = whole[: whole.numel() // world * world]
        part = whole[: whole.numel() // world].clone()
        for op, run in (("all_reduce", _reduce(whole)), ("all_gather", _gather(whole, part))):
            regime, result = timed(run)
            rows.append(row(op, result, regime=regime, world=world, bytes=whole.numel() * 2))
    return rows


def _reduce(whole: torch.Tensor) -> Run:
    def run() -> None:
        for _ in range(CALLS):
            dist.all_reduce(whole)

    return run


def _gather(whole: torch.Tensor, part: torch.Tensor) -> Run:
    def run() -> None:
        for _ in range(CALLS):
            dist.all_gather_into_tensor(whole, part)

    return run


def host_times(run: Run) -> tuple[str, Stats]:
    """Wall clock, for CPU tensors."""
    times = []
    for _ in range(FEWEST_REPEATS):
        dist.barrier()
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return "eager", stats(times, CALLS)


def event_times(run: Run) -> tuple[str, Stats]:
    """Launched one by one."""
    run()
    return "eager", stats(_together(run), CALLS)


def graph_times(run: Run) -> tuple[str, Stats]:
    """In a CUDA graph, as engines run decode steps."""
    graph = capture(run)
    graph.replay()
    return "graph", stats(_together(graph.replay), CALLS)


def _together(run: Run) -> list[float]:
    """Times of `run`, every process beginning behind a barrier, all of them equally often."""

    def once() -> float:
        torch.cuda.synchronize()
        dist.barrier()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    once()
    return repeat(once, float("inf"))


if __name__ == "__main__":
    main(sys.argv[1:])
