"""The step that benchmarks/kernels.py times: its shapes, the same weights in every layout, ours and the peers.

Peers are imported from what is installed; none of their code is here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from simlora.kernels import GroupWeights, apply_lora, from_tensors, step_segments
from simlora.kernels.measure import LAYERS, LLAMA_8B, graph_time

DTYPE, DEVICE = torch.bfloat16, "cuda"
LAUNCHES = LAYERS * len(LLAMA_8B) * 2
PEERS = ("vllm", "sglang", "flashinfer", "bmm", "loop")
WIDE = (
    (1, 1),
    (8, 8),
    (32, 1),
    (32, 32),
    (64, 32),
    (128, 1),
    (128, 32),
    (256, 32),
    (512, 8),
    (2048, 1),
    (2048, 8),
    (8192, 8),
)
SETS = (
    (32, 16, [16] * 32, WIDE),
    (
        32,
        64,
        [8, 16, 32, 64] * 8,
        ((1, 1), (8, 8), (32, 1), (32, 32), (64, 32), (128, 32), (256, 32), (2048, 8), (8192, 8)),
    ),
    (128, 16, [16] * 128, ((1, 1), (32, 32), (128, 1), (128, 128), (256, 32), (256, 128))),
    (8, 64, [64] * 8, ((1, 1), (8, 8), (32, 1), (128, 8), (512, 8), (2048, 8), (8192, 8))),
)
"""(slots, largest rank, ranks, ((tokens, distinct adapters), ...))."""
LayerStacks = list[tuple[list[torch.Tensor], list[torch.Tensor]]]


@dataclass
class Weights:
    """The same weights in every layout: stacks[layer][group] = (A, B) per slice, as vLLM keeps them; ours; SGLang's."""

    stacks: list[LayerStacks]
    ours: list[list[GroupWeights]]
    joined: list[LayerStacks] | None


def joined_slices(parts: list[torch.Tensor], ranks: list[int], max_rank: int) -> torch.Tensor:
    """SGLang's A: [slots, slices * max_rank, in], an adapter's slices adjacent at its own rank."""
    whole = torch.cat([p[:, 0] for p in parts], 1)
    for slot, rank in enumerate(ranks):
        if rank < max_rank and len(parts) > 1:
            whole[slot, : rank * len(parts)] = torch.cat([p[slot, 0, :rank] for p in parts], 0)
    return whole


def make_weights(slots: int, max_rank: int, ranks: list[int], joined: bool, layers: int = LAYERS) -> Weights:
    """Random weights; a rank below the largest leaves rows that no kernel of own rank may read."""
    stacks: list[LayerStacks] = []
    ours = []
    for _ in range(layers):
        row: LayerStacks = []
        for group in LLAMA_8B:
            a = [
                torch.randn(slots, 1, max_rank, group.in_features, device=DEVICE, dtype=DTYPE).mul_(0.02)
                for _ in group.out_features
            ]
            b = [
                torch.randn(slots, 1, width, max_rank, device=DEVICE, dtype=DTYPE).mul_(0.02)
                for width in group.out_features
            ]
            row.append((a, b))
        stacks.append(row)
        ours.append(
            [
                from_tensors(
                    [list(part.squeeze(1).unbind(0)) for part in a],
                    [list(part.squeeze(1).transpose(1, 2).contiguous().unbind(0)) for part in b],
                    [1.0] * slots,
                    ranks,
                )
                for a, b in row
            ]
        )
    both = (
        [
            [([joined_slices(a, ranks, max_rank)], [torch.cat([p[:, 0] for p in b], 1)]) for a, b in row]
            for row in stacks
        ]
        if joined
        else None
    )
    return Weights(stacks, ours, both)


@dataclass
class Step:
    """Inputs and outputs of one step."""

    mapping: torch.Tensor
    slots: int
    ranks: list[int]
    max_rank: int

    def __post_init__(self) -> None:
        self.tokens = int(self.mapping.shape[0])
        self.x = {w: torch.randn(self.tokens, w, device=DEVICE, dtype=DTYPE) for w in {g.in_features for g in LLAMA_8B}}
        self.y = {g.name: torch.zeros(self.tokens, sum(g.out_features), device=DEVICE, dtype=DTYPE) for g in LLAMA_8B}


def ours(step: Step, weights: list[list[GroupWeights]], pdl: bool | None = None) -> Callable[[], None]:
    """apply_lora; the grid covers every mapping of these tokens over these slots."""
    segments = step_segments(step.mapping.to(DEVICE), step.slots, weights[0][0].rank_pad)

    def run() -> None:
        for row in weights:
            for group, w in zip(LLAMA_8B, row, strict=True):
                apply_lora(step.x[group.in_features], w, segments, step.y[group.name], pdl=pdl)

    return run


def vllm(step: Step, weights: Weights) -> Callable[[], None]:
    """vLLM's Triton shrink and expand with its default tiles (no tuned files ship)."""
    from vllm.lora.ops.triton_ops import LoRAKernelMeta, lora_expand, lora_shrink, utils

    for cache in (utils._LORA_A_PTR_DICT, utils._LORA_B_PTR_DICT):
        cache.clear()  # keyed by addresses: weights of another rank, freed since, would be taken for these
    meta = LoRAKernelMeta.make(step.slots, step.tokens, DEVICE)
    meta.prepare_tensors(step.mapping.to(DEVICE))
    args = meta.meta_args(step.tokens, False)
    h = {n: torch.zeros(n, step.tokens, step.max_rank, device=DEVICE, dtype=torch.float32) for n in (1, 2, 3)}

    def run() -> None:
        for row in weights.stacks:
            for group, (a, b) in zip(LLAMA_8B, row, strict=True):
                lora_shrink(step.x[group.in_features], a, h[len(a)], *args, 1.0)
                lora_expand(h[len(a)], b, step.y[group.name], *args, 0, True)

    return run


def _sglang_kernels() -> tuple[Any, Any, Any]:
    try:
        from sglang.kernels.ops.lora.dense.chunked_sgmv_expand import chunked_sgmv_lora_expand_forward as expand
        from sglang.kernels.ops.lora.dense.chunked_sgmv_shrink import chunked_sgmv_lora_shrink_forward as shrink
    except ImportError:
        from sglang.kernels.ops.gemm.chunked_sgmv_expand import chunked_sgmv_lora_expand_forward as expand
        from sglang.kernels.ops.gemm.chunked_sgmv_shrink import chunked_sgmv_lora_shrink_forward as shrink
    from sglang.srt.lora.utils import LoRABatchInfo

    return shrink, expand, LoRABatchInfo


def sglang(step: Step, weights: Weights) -> Callable[[], None]:
    """SGLang's chunked SGMV: exact segments, chunks of 16, 32 or 128 tokens by token count, default tiles."""
    shrink, expand, batch_info = _sglang_kernels()
    chunk = 128 if step.tokens >= 256 else 32 if step.tokens >= 64 else 16
    order = torch.argsort(step.mapping, stable=True)
    ends, ids, start = [0], [], 0
    for adapter, count in zip(
        *(t.tolist() for t in step.mapping[order].unique_consecutive(return_counts=True)), strict=True
    ):
        for first in range(0, count, chunk):
            ends.append(start + min(first + chunk, count))
            ids.append(adapter)
        start += count
    whole: dict[str, Any] = {"dtype": torch.int32, "device": DEVICE}
    info = batch_info(
        use_cuda_graph=False,
        bs=step.tokens,
        num_segments=len(ids),
        max_len=chunk,
        seg_indptr=torch.tensor(ends, **whole),
        weight_indices=torch.tensor(ids, **whole),
        lora_ranks=torch.tensor(step.ranks, **whole),
        scalings=torch.ones(step.slots, device=DEVICE),
        permutation=order.to(torch.int32).to(DEVICE),
        seg_lens=None,
    )
    offsets = {
        g.name: torch.tensor([0, *torch.tensor(g.out_features).cumsum(0).tolist()], dtype=torch.int32) for g in LLAMA_8B
    }
    on_gpu = {name: t.to(DEVICE) for name, t in offsets.items()}

    def run() -> None:
        for row in weights.joined or []:
            for group, ((a,), (b,)) in zip(LLAMA_8B, row, strict=True):
                h = shrink(step.x[group.in_features], a, info, len(group.out_features))
                expand(h, b, info, on_gpu[group.name], max(group.out_features), step.y[group.name])

    return run


def flashinfer(step: Step, weights: Weights) -> Callable[[], None]:
    """FlashInfer's segment GEMM, shrink and expand for each slice, then the add (its kernels do not accumulate)."""
    from flashinfer import SegmentGEMMWrapper

    if len(set(step.ranks)) > 1:
        raise ValueError("one rank only")
    gemm = SegmentGEMMWrapper(torch.empty(128 * 2**20, dtype=torch.int8, device=DEVICE))
    order = torch.argsort(step.mapping, stable=True)
    ids, counts = step.mapping[order].unique_consecutive(return_counts=True)
    order, ids, lens, n = order.to(DEVICE), ids.long().to(DEVICE), counts.long().to(DEVICE), len(ids)

    def run() -> None:
        for row in weights.stacks:
            for group, (a, b) in zip(LLAMA_8B, row, strict=True):
                x, start = step.x[group.in_features][order], 0
                for a_part, b_part in zip(a, b, strict=True):
                    h = gemm.run(x, a_part[:, 0], n, True, seg_lens=lens, weight_indices=ids)
                    out = gemm.run(h, b_part[:, 0], n, True, seg_lens=lens, weight_indices=ids)
                    step.y[group.name][:, start : start + out.shape[1]].index_add_(0, order, out)
                    start += out.shape[1]

    return run


def bmm(step: Step, weights: Weights) -> Callable[[], None]:
    """Gathered weights and torch.bmm at the largest rank, as padded_bmm does it."""
    if step.tokens > 256:
        raise ValueError("gathers a copy of the weights for every token")
    index = step.mapping.long().to(DEVICE)

    def run() -> None:
        for row in weights.stacks:
            for group, (a, b) in zip(LLAMA_8B, row, strict=True):
                x, start = step.x[group.in_features].unsqueeze(2), 0
                for a_part, b_part in zip(a, b, strict=True):
                    delta = torch.bmm(b_part[index, 0], torch.bmm(a_part[index, 0], x)).squeeze(2)
                    step.y[group.name][:, start : start + delta.shape[1]] += delta
                    start += delta.shape[1]

    return run


def loop(step: Step, weights: Weights) -> Callable[[], None]:
    """Two matrix products for each adapter and slice."""
    rows = {i: (step.mapping == i).nonzero().squeeze(1).to(DEVICE) for i in step.mapping.unique().tolist()}
    if len(rows) > 8 or step.tokens > 2048:
        raise ValueError("thousands of launches a layer or seconds a step")

    def run() -> None:
        for layer in weights.stacks:
            for group, (a, b) in zip(LLAMA_8B, layer, strict=True):
                for i, index in rows.items():
                    x, start, r = step.x[group.in_features].index_select(0, index), 0, step.ranks[i]
                    for a_part, b_part in zip(a, b, strict=True):
                        delta = (x @ a_part[i, 0, :r].t()) @ b_part[i, 0, :, :r].t()
                        step.y[group.name][:, start : start + delta.shape[1]].index_add_(0, index, delta)
                        start += delta.shape[1]

    return run


RUNNERS: dict[str, Callable[[Step, Weights], Callable[[], None]]] = {
    "vllm": vllm,
    "sglang": sglang,
    "flashinfer": flashinfer,
    "bmm": bmm,
    "loop": loop,
}


def once(run: Callable[[], object], **_: float) -> float:
    """In place of graph_time where a run only compiles kernels."""
    run()
    torch.cuda.synchronize()
    return 0.0


def timed(
    make: Callable[[], Callable[[], None]],
    failures: dict[str, str],
    name: str,
    clock: Callable[..., float] = graph_time,
) -> float | None:
    """Median seconds, or None with the reason kept."""
    try:
        return clock(make(), patience_s=0.25)
    except Exception as failed:  # a peer may fail in any way
        failures.setdefault(name, f"{type(failed).__name__}: {str(failed)[:160]}")
        return None
    finally:
        torch.cuda.empty_cache()
