"""Collectives over the GPUs of one host, in one process each, through torch.distributed."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from .bench import Bench, Rows, row
from .sampling import FEWEST_REPEATS, Stats, capture, repeat, stats

CALLS = 16
"""Collectives timed in a row: one alone would measure how far the processes are apart."""
TIMEOUT = timedelta(seconds=60)


def collectives(bench: Bench, world: int, sizes: tuple[int, ...]) -> Rows:
    """All-reduce and all-gather on `world` GPUs: eager, and in CUDA graphs. bytes: the whole buffer on one GPU."""
    if not bench.on_gpu:
        yield from _dry(bench, sizes)
        return
    target = Path(tempfile.mkdtemp(dir=bench.folder)) / "rows.json"
    bench.release()
    torch.multiprocessing.spawn(worker, (world, sizes, _free_port(), str(target)), nprocs=world)
    yield from json.loads(target.read_text())
    target.unlink()
    target.parent.rmdir()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def worker(rank: int, world: int, sizes: tuple[int, ...], port: int, target: str, device: str = "cuda") -> None:
    """One process a GPU; the first writes what it timed. device cpu: the same through gloo, for tests."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if device == "cuda" else "gloo", rank=rank, world_size=world, timeout=TIMEOUT)
    timers = (_graph_times, _event_times) if device == "cuda" else (_host_times,)
    try:
        rows = [row for timed in timers for row in _measure(world, sizes, device, timed)]
    finally:
        dist.destroy_process_group()
    if rank == 0:
        Path(target).write_text(json.dumps(rows))


def _dry(bench: Bench, sizes: tuple[int, ...]) -> Rows:
    """One process on the CPU: the same code, no communication."""
    store = dist.FileStore(str(bench.folder / "dry-store"), 1)
    dist.init_process_group("gloo", rank=0, world_size=1, store=store, timeout=TIMEOUT)
    try:
        yield from _measure(1, sizes, "cpu", _host_times)
    finally:
        dist.destroy_process_group()
        (bench.folder / "dry-store").unlink(missing_ok=True)


def _measure(
    world: int, sizes: tuple[int, ...], device: str, timed: Callable[[Callable[[], None]], tuple[str, Stats]]
) -> list[dict[str, Any]]:
    rows = []
    for size in sizes:
        whole = torch.ones(max(size // 2, world), dtype=torch.bfloat16, device=device)
        whole = whole[: whole.numel() // world * world]
        part = whole[: whole.numel() // world].clone()
        for op, call in (("all_reduce", _reduce(whole)), ("all_gather", _gather(whole, part))):
            regime, result = timed(call)
            rows.append(row(op, result, regime=regime, world=world, bytes=whole.numel() * 2))
    return rows


def _reduce(whole: torch.Tensor) -> Callable[[], None]:
    def run() -> None:
        for _ in range(CALLS):
            dist.all_reduce(whole)

    return run


def _gather(whole: torch.Tensor, part: torch.Tensor) -> Callable[[], None]:
    def run() -> None:
        for _ in range(CALLS):
            dist.all_gather_into_tensor(whole, part)

    return run


def _event_times(run: Callable[[], None]) -> tuple[str, Stats]:
    run()
    return "eager", stats(_together(run), CALLS)


def _host_times(run: Callable[[], None]) -> tuple[str, Stats]:
    times = []
    for _ in range(FEWEST_REPEATS):
        dist.barrier()
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return "eager", stats(times, CALLS)


def _graph_times(run: Callable[[], None]) -> tuple[str, Stats]:
    graph = capture(run)
    graph.replay()
    return "graph", stats(_together(graph.replay), CALLS)


def _together(run: Callable[[], object]) -> list[float]:
    """Times of `run`, every process beginning behind a barrier, all of them equally often."""

    def once() -> float:
        torch.cuda.synchronize()
        dist.barrier()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3

    once()
    return repeat(once, float("inf"))
