"""Collectives over the GPUs of one host: one process a GPU, each started by itself."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch.distributed as dist

from .bench import Bench, Rows
from .collective_worker import TIMEOUT, host_times, measure_sizes

START_S = 60.0
"""Importing torch and connecting, at most."""
POLL_S = 0.05


def collectives(bench: Bench, world: int, sizes: tuple[int, ...]) -> Rows:
    """All-reduce and all-gather on `world` GPUs, in CUDA graphs and eager."""
    if not bench.on_gpu:
        yield from _dry(bench, sizes)
        return
    bench.release()
    yield from in_processes(bench.folder, world, sizes, "cuda")


def in_processes(folder: Path, world: int, sizes: tuple[int, ...], device: str) -> Rows:
    """Rows of the first of `world` processes. Raises RuntimeError with the last line that a failed one wrote."""
    with tempfile.TemporaryDirectory(prefix="collectives-", dir=folder) as scratch:
        target, port = Path(scratch) / "rows.json", _free_port()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        processes, logs = [], [Path(scratch) / f"{rank}.log" for rank in range(world)]
        for rank, log in enumerate(logs):
            arguments = map(str, (rank, world, port, target, device, *sizes))
            command = [sys.executable, "-m", "simlora.calibrate.collective_worker", *arguments]
            with log.open("w") as file:
                processes.append(subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT))
        failed = _wait(processes)
        if failed is not None:
            raise RuntimeError(f"process {failed}: {_last_line(logs[failed])}")
        yield from json.loads(target.read_text())


def _wait(processes: list[subprocess.Popen[bytes]]) -> int | None:
    """Wait for all; at the first failure or after the time-out end the rest, and return the failed one's rank."""
    deadline = time.monotonic() + START_S + TIMEOUT.total_seconds()
    try:
        while True:
            codes = [process.poll() for process in processes]
            failed = next((rank for rank, code in enumerate(codes) if code), None)
            if failed is not None:
                return failed
            if all(code == 0 for code in codes):
                return None
            if time.monotonic() > deadline:
                return codes.index(None)
            time.sleep(POLL_S)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text().splitlines() if line.strip()]
    return lines[-1] if lines else "no answer in time"


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _dry(bench: Bench, sizes: tuple[int, ...]) -> Rows:
    """One process on the CPU: the same code, no communication."""
    store = (bench.folder / "dry-store").absolute()
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1, timeout=TIMEOUT)
    try:
        yield from measure_sizes(1, sizes, "cpu", host_times)
    finally:
        dist.destroy_process_group()
        store.unlink(missing_ok=True)
