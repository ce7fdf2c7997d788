"""What the table of benchmarks/kernels.py leaves out: reuse within a segment, layouts, dependent launch, segments."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from kernel_peers import DEVICE, DTYPE, LAYERS, SETS, LayerStacks, Step, make_weights, ours
from simlora.kernels import (
    GroupShape,
    GroupWeights,
    PagePlan,
    bgmv,
    build_segments,
    pack_adapter,
    paged_group,
    step_segments,
)
from simlora.kernels.measure import LLAMA_8B, graph_time, token_mapping


def paged_layers(stacks: list[LayerStacks], ranks: list[int], page_bytes: int) -> list[list[GroupWeights]]:
    """The same adapters in one shuffled page pool."""
    shape = tuple(GroupShape(g.in_features, g.out_features) for g in LLAMA_8B) * len(stacks)
    plan = PagePlan(shape, page_bytes)
    packed = [
        pack_adapter(
            plan,
            [[p[i, 0, :r] for p in a] for row in stacks for a, _ in row],
            [[p[i, 0, :, :r].t() for p in b] for row in stacks for _, b in row],
        )
        for i, r in enumerate(ranks)
    ]
    total = sum(p.shape[0] for p in packed)
    where = torch.randperm(total, device=DEVICE).to(torch.int32)
    pool = torch.empty(total, plan.page_elements, device=DEVICE, dtype=DTYPE)
    table = torch.zeros(len(ranks), max(p.shape[0] for p in packed), device=DEVICE, dtype=torch.int32)
    start = 0
    for i, pages in enumerate(packed):
        pool[where[start : start + len(pages)].long()] = pages
        table[i, : len(pages)] = where[start : start + len(pages)]
        start += len(pages)
    groups = len(LLAMA_8B)
    return [
        [paged_group(plan, layer * groups + g, pool, table, ranks, [1.0] * len(ranks)) for g in range(groups)]
        for layer in range(len(stacks))
    ]


def per_token(
    step: Step, weights: list[list[GroupWeights]], kernel: Callable[..., Any], rows_a_tile: int
) -> Callable[[], None]:
    """bgmv or mbgmv at a given tile height."""
    segments = build_segments(step.mapping.to(DEVICE), step.slots, rows_a_tile)

    def run() -> None:
        for row in weights:
            for group, w in zip(LLAMA_8B, row, strict=True):
                kernel(step.x[group.in_features], w, segments, step.y[group.name])

    return run


def details(clock: Callable[..., float] = graph_time, layers: int = LAYERS) -> dict[str, Any]:
    """What the main table leaves out: reuse within a segment, paged weights, dependent launch, segment building."""
    found: dict[str, Any] = {"reuse": [], "layout": [], "segments": []}
    slots, max_rank, ranks, _ = SETS[2]
    weights = make_weights(slots, max_rank, ranks, False, layers)
    for tokens, distinct in ((32, 1), (128, 1), (128, 128), (256, 1), (256, 128)):
        step = Step(token_mapping(tokens, distinct), slots, ranks, max_rank)
        found["reuse"].append(
            {
                "tokens": tokens,
                "distinct": distinct,
                "sgmv_s": clock(ours(step, weights.ours)),
                "bgmv_s": clock(per_token(step, weights.ours, bgmv, 1), patience_s=0.25),
            }
        )
    del weights
    torch.cuda.empty_cache()
    slots, max_rank, ranks, _ = SETS[1]
    weights = make_weights(slots, max_rank, ranks, False, layers)
    paged = {size: paged_layers(weights.stacks, ranks, size) for size in (16 * 1024, 64 * 1024)}
    for tokens, distinct in ((1, 1), (32, 32), (128, 32), (2048, 8)):
        step = Step(token_mapping(tokens, distinct), slots, ranks, max_rank)
        found["layout"].append(
            {
                "tokens": tokens,
                "distinct": distinct,
                "pointers_s": clock(ours(step, weights.ours)),
                "pointers_no_pdl_s": clock(ours(step, weights.ours, False)),
                **{f"pages_{size // 1024}k_s": clock(ours(step, layers)) for size, layers in paged.items()},
            }
        )
    for tokens in (32, 256, 8192):
        mapping = token_mapping(tokens, 32)
        on_gpu = mapping.to(DEVICE)
        host = []
        for _ in range(20):
            begin = time.perf_counter()
            step_segments(mapping, 32)
            host.append(time.perf_counter() - begin)
        found["segments"].append(
            {"tokens": tokens, "gpu_graph_s": clock(partial(step_segments, on_gpu, 32)), "cpu_s": sorted(host)[10]}
        )
    return found
