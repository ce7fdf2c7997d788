"""Launch and host overheads. Engines' own host costs come from recorded runs; these compare hosts and GPUs."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .bench import Bench, Rows, measured
from .sampling import capture


@triton.jit
def _nothing(where):
    if tl.program_id(0) > 1:
        tl.store(where, 0)


def host_yardstick(bench: Bench, calls: int) -> Rows:
    """The interpreter's speed on a scheduler's kind of work: dictionary and integer operations, and list look-ups."""
    yield measured("python_loop", bench.timer.host, lambda: _bookkeeping(calls), calls)
    slots = list(range(1, 33))
    tokens = [1 + index % 32 for index in range(max(calls // 100, 1))]
    yield measured("python_lookup", bench.timer.host, lambda: [slots.index(t) for t in tokens], len(tokens), slots=32)


def _bookkeeping(calls: int) -> int:
    """One dictionary read, one write and two integer operations for each call."""
    counts: dict[int, int] = {}
    total = 0
    for index in range(calls):
        key = index & 255
        counts[key] = counts.get(key, 0) + 1
        total += key
    return total


def launches(bench: Bench, launches: int) -> Rows:
    """One launch: in a graph of dependent kernels, eager by torch and by Triton; and the replay of a graph."""
    x = bench.empty(1).zero_()
    where = torch.zeros(1, dtype=torch.int32, device=bench.device)

    def torch_chain() -> None:
        for _ in range(launches):
            x.add_(1.0)

    def triton_chain() -> None:
        for _ in range(launches):
            _nothing[(1,)](where)

    for name, chain in (("torch", torch_chain), ("triton", triton_chain)):
        yield measured("launch", bench.timer.graph, chain, launches, regime="graph", launcher=name, launches=launches)
        yield measured("launch", bench.timer.host, chain, launches, regime="eager", launcher=name, launches=launches)
    if bench.on_gpu:
        yield from _replays(bench, x, launches)


def _replays(bench: Bench, x: torch.Tensor, launches: int) -> Rows:
    """Host time of replaying a graph, by its number of kernels."""
    for kernels in (1, launches, 8 * launches):

        def chain(kernels: int = kernels) -> None:
            for _ in range(kernels):
                x.add_(1.0)

        replay = capture(chain).replay
        yield measured("graph_replay", bench.timer.host, replay, kernels=kernels)
        yield measured("graph_replay_wall", bench.timer.wall, replay, kernels=kernels)
