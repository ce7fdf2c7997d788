"""Measuring LoRA kernels as a served model runs them: whole steps in CUDA graphs, every layer's weights distinct."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch
import triton
import triton.language as tl

from .layout import GroupWeights, from_tensors

LAYERS = 32
"""Layers of Llama-3.1-8B."""


@dataclass(frozen=True)
class Group:
    """One projection group of the model: its base linear's input width and its slices' output widths."""

    name: str
    in_features: int
    out_features: tuple[int, ...]


LLAMA_8B = (
    Group("qkv", 4096, (4096, 1024, 1024)),
    Group("o", 4096, (4096,)),
    Group("gate_up", 4096, (14336, 14336)),
    Group("down", 14336, (4096,)),
)
"""Llama-3.1-8B: hidden 4096, intermediate 14336, 8 key/value heads of 128."""


def graph_time(
    run: Callable[[], object], replays: int = 20, warmups: int = 2, patience_s: float = float("inf"), eager: int = 2
) -> float:
    """Median seconds of one replay of `run` captured in a CUDA graph after `eager` plain runs; 5 replays where
    `replays` would outlast patience_s."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(eager):
            run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for _ in range(warmups):
        graph.replay()
    torch.cuda.synchronize()
    times: list[float] = []
    for _ in range(replays):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
        if len(times) >= 5 and sum(times) / len(times) * replays > patience_s:
            break
    return median(times)


@triton.jit
def _nothing(where):  # type: ignore[no-untyped-def]
    if tl.program_id(0) > 1:
        tl.store(where, 0)


def launch_seconds(device: str = "cuda", launches: int = 256) -> float:
    """Seconds from one empty Triton kernel to the next that depends on it, inside a CUDA graph."""
    where = torch.zeros(1, dtype=torch.int32, device=device)

    def chain() -> None:
        for _ in range(launches):
            _nothing[(1,)](where)

    return graph_time(chain) / launches


def copy_bandwidth(device: str = "cuda", size_bytes: int = 2**32) -> float:
    """Bytes per second, read plus written, of a large device-to-device copy: the faster of a memcpy and of a kernel."""
    source = torch.empty(size_bytes // 2, dtype=torch.int16, device=device).random_()
    target = torch.empty_like(source)
    engine = graph_time(lambda: target.copy_(source), 10)
    kernel = graph_time(lambda: torch.bitwise_not(source, out=target), 10)
    return 2 * size_bytes / min(engine, kernel)


def token_mapping(tokens: int, distinct: int) -> torch.Tensor:
    """int32 [tokens] on the CPU: adapters 0 to distinct - 1 in equal shares, shuffled with a fixed seed."""
    generator = torch.Generator().manual_seed(1)
    return (torch.arange(tokens) % distinct)[torch.randperm(tokens, generator=generator)].to(torch.int32)


def layer_weights(
    groups: Sequence[Group],
    ranks: Sequence[int],
    layers: int = LAYERS,
    device: str = "cuda",
    dtype: torch.dtype = torch.bfloat16,
) -> list[list[GroupWeights]]:
    """Random pointer-array weights of every layer and group, at the adapters' own ranks."""
    return [[_random_group(group, ranks, device, dtype) for group in groups] for _ in range(layers)]


def _random_group(group: Group, ranks: Sequence[int], device: str, dtype: torch.dtype) -> GroupWeights:
    def stack(width: int) -> list[torch.Tensor]:
        flat = torch.randn(sum(ranks), width, device=device, dtype=dtype).mul_(0.02)
        return list(flat.split(list(ranks)))

    a = [stack(group.in_features) for _ in group.out_features]
    b = [stack(width) for width in group.out_features]
    return from_tensors(a, b, [1.0] * len(ranks))


def traffic_bytes(groups: Sequence[Group], layers: int, mapping: torch.Tensor, ranks: Sequence[int]) -> tuple[int, int]:
    """(weight bytes, activation bytes) of one step, each moved once.

    Weights: those of the distinct adapters, at their own ranks. Activations: each group's input once, its output read
    and written once, because LoRA adds into the base output. Two bytes an element.
    """
    active = [i for i in mapping.unique().tolist() if i >= 0]
    per_rank = sum(g.in_features * len(g.out_features) + sum(g.out_features) for g in groups)
    per_token = sum(g.in_features + 2 * sum(g.out_features) for g in groups)
    tokens = int((mapping >= 0).sum())
    return sum(ranks[i] for i in active) * per_rank * 2 * layers, tokens * per_token * 2 * layers


def flops(groups: Sequence[Group], layers: int, mapping: torch.Tensor, ranks: Sequence[int]) -> int:
    """Floating-point operations of one step at own ranks."""
    per_rank = sum(g.in_features * len(g.out_features) + sum(g.out_features) for g in groups)
    used: list[int] = mapping[mapping >= 0].tolist()
    return 2 * sum(ranks[i] for i in used) * per_rank * layers
