"""Launch and host overheads. Engines' own host costs come from recorded runs; these compare hosts and GPUs."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .bench import Bench, Rows, measured
from .sampling import capture

FRESH_BYTES = (2**21, 2**26, 2**30)


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


def views(bench: Bench, views: int) -> Rows:
    """One view of a tensor taken in Python, which launches nothing: rows, a narrowed dimension, a transpose, a shape,
    and each of four that one index with five places takes."""
    x = bench.empty(views + 1, 8, 16)
    deep = bench.empty(2, 2, views + 1, 8, 16)

    def rows() -> None:
        for index in range(views):
            x[index : index + 1]

    def narrow() -> None:
        for index in range(views):
            x.narrow(0, index, 1)

    def transpose() -> None:
        for _ in range(views):
            x.transpose(1, 2)

    def shape() -> None:
        for _ in range(views):
            x.view(-1, 128)

    def index() -> None:  # three dimensions selected, one sliced, one left whole
        for place in range(views):
            deep[1, 1, place, :, :8]

    kinds = (("slice", rows, 1), ("narrow", narrow, 1), ("transpose", transpose, 1), ("view", shape, 1))
    for name, loop, each in (*kinds, ("index", index, 4)):
        yield measured("torch_view", bench.timer.host, loop, views * each, kind=name, views=views * each)


def calls(bench: Bench, calls: int) -> Rows:
    """One call that padded products over adapters apart make for each run of requests: matrices copied into a slice of
    a batch, a result scaled into memory of its own, added to rows, and written back to where it is already."""
    batch, matrix = bench.empty(2, 64, 32), bench.empty(64, 16)
    rows, result = bench.empty(8, 64).zero_(), bench.empty(1, 64).zero_()
    part, own = batch[0, :, :16], rows[2:3]

    def copy() -> None:
        for _ in range(calls):
            part.copy_(matrix)

    def scale() -> None:
        for _ in range(calls):
            result * 0.5

    def add() -> None:
        for _ in range(calls):
            own.add_(result)

    def write_back() -> None:
        for _ in range(calls):
            rows[2:3] = own

    for name, loop in (("copy", copy), ("scale", scale), ("add", add), ("write-back", write_back)):
        yield measured("torch_call", bench.timer.host, loop, calls, kind=name)


def waits(bench: Bench, reads: int) -> Rows:
    """What makes the host wait: a number read back from an idle GPU, and memory given back and asked for anew."""
    number = bench.empty(1).zero_()[0]

    def read() -> None:
        for _ in range(reads):
            number.item()

    yield measured("read_back", bench.timer.host, read, reads, reads=reads)
    if not bench.on_gpu:
        return
    for size in FRESH_BYTES:

        def again(size: int = size) -> None:
            torch.cuda.empty_cache()
            torch.empty(size, dtype=torch.uint8, device=bench.device)

        yield measured("fresh_memory", bench.timer.host, again, bytes=size)


def _replays(bench: Bench, x: torch.Tensor, launches: int) -> Rows:
    """Host time of replaying a graph, by its number of kernels."""
    for kernels in (1, launches, 8 * launches):

        def chain(kernels: int = kernels) -> None:
            for _ in range(kernels):
                x.add_(1.0)

        replay = capture(chain).replay
        yield measured("graph_replay", bench.timer.host, replay, kernels=kernels)
        yield measured("graph_replay_wall", bench.timer.wall, replay, kernels=kernels)
