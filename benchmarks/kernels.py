"""LoRA kernels against peers on one GPU: the LoRA time of a whole Llama-3.1-8B step.

python benchmarks/kernels.py --peers vllm,sglang,flashinfer,bmm,loop --out benchmarks/results/kernels-h200.json

One figure a shape: all layers and projections, replayed as a CUDA graph, weights of every layer distinct, median. Peers are
imported from what is installed; one that is missing or cannot run a shape gives null. limit_s = bytes moved once (weights
of the distinct adapters at their own rank, inputs read, outputs read and written) / measured copy bandwidth;
floor_s = limit_s + launches * launch_s, launch_s between dependent empty Triton kernels in a graph.
"""
from __future__ import annotations

import argparse
import json
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton

from simlora.kernels import (
    GroupShape,
    GroupWeights,
    PagePlan,
    apply_lora,
    bgmv,
    build_segments,
    from_tensors,
    pack_adapter,
    paged_group,
    step_segments,
)
from simlora.kernels.measure import (
    LAYERS,
    LLAMA_8B,
    copy_bandwidth,
    graph_time,
    launch_seconds,
    token_mapping,
    traffic_bytes,
)

DTYPE, DEVICE = torch.bfloat16, "cuda"
LAUNCHES = LAYERS * len(LLAMA_8B) * 2
PEERS = ("vllm", "sglang", "flashinfer", "bmm", "loop")
WIDE = ((1, 1), (8, 8), (32, 1), (32, 32), (64, 32), (128, 1), (128, 32), (256, 32), (512, 8), (2048, 1), (2048, 8), (8192, 8))
SETS = (
    (32, 16, [16] * 32, WIDE),
    (32, 64, [8, 16, 32, 64] * 8, ((1, 1), (8, 8), (32, 1), (32, 32), (64, 32), (128, 32), (256, 32), (2048, 8), (8192, 8))),
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
            whole[slot, :rank * len(parts)] = torch.cat([p[slot, 0, :rank] for p in parts], 0)
    return whole


def make_weights(slots: int, max_rank: int, ranks: list[int], joined: bool, layers: int = LAYERS) -> Weights:
    """Random weights; a rank below the largest leaves rows that no kernel of own rank may read."""
    stacks: list[LayerStacks] = []
    ours = []
    for _ in range(layers):
        row: LayerStacks = []
        for group in LLAMA_8B:
            a = [torch.randn(slots, 1, max_rank, group.in_features, device=DEVICE, dtype=DTYPE).mul_(0.02)
                 for _ in group.out_features]
            b = [torch.randn(slots, 1, width, max_rank, device=DEVICE, dtype=DTYPE).mul_(0.02) for width in group.out_features]
            row.append((a, b))
        stacks.append(row)
        ours.append([from_tensors([list(part.squeeze(1).unbind(0)) for part in a],
                                  [list(part.squeeze(1).transpose(1, 2).contiguous().unbind(0)) for part in b],
                                  [1.0] * slots, ranks) for a, b in row])
    both = [[([joined_slices(a, ranks, max_rank)], [torch.cat([p[:, 0] for p in b], 1)]) for a, b in row]
            for row in stacks] if joined else None
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
    segments = step_segments(step.mapping.to(DEVICE), step.slots)

    def run() -> None:
        for row in weights:
            for group, w in zip(LLAMA_8B, row, strict=True):
                apply_lora(step.x[group.in_features], w, segments, step.y[group.name], pdl=pdl)

    return run


def vllm(step: Step, weights: Weights) -> Callable[[], None]:
    """vLLM's Triton shrink and expand with its default tiles (no tuned files ship)."""
    from vllm.lora.ops.triton_ops import LoRAKernelMeta, lora_expand, lora_shrink
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
    for adapter, count in zip(*(t.tolist() for t in step.mapping[order].unique_consecutive(return_counts=True)), strict=True):
        for first in range(0, count, chunk):
            ends.append(start + min(first + chunk, count))
            ids.append(adapter)
        start += count
    whole = {"dtype": torch.int32, "device": DEVICE}
    info = batch_info(use_cuda_graph=False, bs=step.tokens, num_segments=len(ids), max_len=chunk,
                      seg_indptr=torch.tensor(ends, **whole), weight_indices=torch.tensor(ids, **whole),
                      lora_ranks=torch.tensor(step.ranks, **whole), scalings=torch.ones(step.slots, device=DEVICE),
                      permutation=order.to(torch.int32).to(DEVICE), seg_lens=None)
    offsets = {g.name: torch.tensor([0, *torch.tensor(g.out_features).cumsum(0).tolist()], dtype=torch.int32) for g in LLAMA_8B}
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
                    step.y[group.name][:, start:start + out.shape[1]].index_add_(0, order, out)
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
                    step.y[group.name][:, start:start + delta.shape[1]] += delta
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
                        step.y[group.name][:, start:start + delta.shape[1]].index_add_(0, index, delta)
                        start += delta.shape[1]

    return run


RUNNERS: dict[str, Callable[[Step, Weights], Callable[[], None]]] = {
    "vllm": vllm, "sglang": sglang, "flashinfer": flashinfer, "bmm": bmm, "loop": loop}


def once(run: Callable[[], object], **_: float) -> float:
    """In place of graph_time where a run only compiles kernels."""
    run()
    torch.cuda.synchronize()
    return 0.0


def timed(make: Callable[[], Callable[[], None]], failures: dict[str, str], name: str,
          clock: Callable[..., float] = graph_time) -> float | None:
    """Median seconds, or None with the reason kept."""
    try:
        return clock(make(), patience_s=0.25)
    except Exception as failed:  # a peer may fail in any way
        failures.setdefault(name, f"{type(failed).__name__}: {str(failed)[:160]}")
        return None
    finally:
        torch.cuda.empty_cache()


def shape_row(step: Step, distinct: int, weights: Weights, peers: list[str], ceilings: tuple[float, float],
              failures: dict[str, str]) -> dict[str, Any]:
    """One row of the file."""
    bandwidth, launch_s = ceilings
    limit = sum(traffic_bytes(LLAMA_8B, LAYERS, step.mapping, step.ranks)) / bandwidth
    row: dict[str, Any] = {
        "tokens": step.tokens, "distinct": distinct, "ranks": sorted(set(step.ranks)), "slots": step.slots,
        "max_rank": step.max_rank, "launches": LAUNCHES, "limit_s": limit, "floor_s": limit + LAUNCHES * launch_s,
        "ours_s": timed(lambda: ours(step, weights.ours), failures, "ours")}
    for name in PEERS:
        row[name + "_s"] = timed(partial(RUNNERS[name], step, weights), failures, name) if name in peers else None
    return row


def rows(peers: list[str], budget_s: float, ceilings: tuple[float, float], failures: dict[str, str]) -> Iterator[dict[str, Any]]:
    """One row for each shape, until the budget is spent."""
    begin = time.monotonic()
    for slots, max_rank, ranks, shapes in SETS:
        if time.monotonic() - begin > budget_s:
            return
        weights: Weights | None = make_weights(slots, max_rank, ranks, "sglang" in peers)
        for tokens, distinct in shapes:
            if time.monotonic() - begin > budget_s:
                print(f"budget spent before slots {slots} ranks {sorted(set(ranks))} tokens {tokens}", file=sys.stderr)
                return
            assert weights is not None
            yield shape_row(Step(token_mapping(tokens, distinct), slots, ranks, max_rank), distinct, weights, peers, ceilings,
                            failures)
        weights = None
        torch.cuda.empty_cache()


def line(row: dict[str, Any]) -> str:
    """One row of the printed table, milliseconds."""
    ms = [f"{row[k] * 1e3:8.3f}" if row[k] is not None else "       -"
          for k in ("limit_s", "floor_s", "ours_s", *(p + "_s" for p in PEERS))]
    ratio = row["ours_s"] / row["floor_s"] if row["ours_s"] else float("nan")
    best = min((row[p + "_s"] for p in PEERS if row[p + "_s"]), default=float("nan"))
    gain = best / row["ours_s"] if row["ours_s"] else float("nan")
    ranks = ",".join(str(r) for r in row["ranks"])
    return f"{row['slots']:5} {ranks:>10} {row['tokens']:6} {row['distinct']:8} {' '.join(ms)} {ratio:7.2f} {gain:6.1f}"


def provenance(launch_s: float) -> dict[str, Any]:
    """Where and how the file was made."""
    driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True,
                            check=False).stdout.strip()
    return {"gpu": torch.cuda.get_device_name(0), "driver": driver, "torch": torch.__version__, "triton": triton.__version__,
            "date": datetime.now(UTC).date().isoformat(), "command": "python " + " ".join(sys.argv), "launch_s": launch_s}


def paged_layers(stacks: list[LayerStacks], ranks: list[int], page_bytes: int) -> list[list[GroupWeights]]:
    """The same adapters in one shuffled page pool."""
    shape = tuple(GroupShape(g.in_features, g.out_features) for g in LLAMA_8B) * len(stacks)
    plan = PagePlan(shape, page_bytes)
    packed = [pack_adapter(plan, [[p[i, 0, :r] for p in a] for row in stacks for a, _ in row],
                           [[p[i, 0, :, :r].t() for p in b] for row in stacks for _, b in row]) for i, r in enumerate(ranks)]
    total = sum(p.shape[0] for p in packed)
    where = torch.randperm(total, device=DEVICE).to(torch.int32)
    pool = torch.empty(total, plan.page_elements, device=DEVICE, dtype=DTYPE)
    table = torch.zeros(len(ranks), max(p.shape[0] for p in packed), device=DEVICE, dtype=torch.int32)
    start = 0
    for i, pages in enumerate(packed):
        pool[where[start:start + len(pages)].long()] = pages
        table[i, :len(pages)] = where[start:start + len(pages)]
        start += len(pages)
    groups = len(LLAMA_8B)
    return [[paged_group(plan, layer * groups + g, pool, table, ranks, [1.0] * len(ranks)) for g in range(groups)]
            for layer in range(len(stacks))]


def per_token(step: Step, weights: list[list[GroupWeights]], kernel: Callable[..., Any], rows_a_tile: int) -> Callable[[], None]:
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
    weights: Weights | None = make_weights(slots, max_rank, ranks, False, layers)
    for tokens, distinct in ((32, 1), (128, 1), (128, 128), (256, 1), (256, 128)):
        step = Step(token_mapping(tokens, distinct), slots, ranks, max_rank)
        found["reuse"].append({"tokens": tokens, "distinct": distinct, "sgmv_s": clock(ours(step, weights.ours)),
                               "bgmv_s": clock(per_token(step, weights.ours, bgmv, 1), patience_s=0.25)})
    weights = None
    torch.cuda.empty_cache()
    slots, max_rank, ranks, _ = SETS[1]
    weights = make_weights(slots, max_rank, ranks, False, layers)
    paged = {size: paged_layers(weights.stacks, ranks, size) for size in (16 * 1024, 64 * 1024)}
    for tokens, distinct in ((1, 1), (32, 32), (128, 32), (2048, 8)):
        step = Step(token_mapping(tokens, distinct), slots, ranks, max_rank)
        found["layout"].append({
            "tokens": tokens, "distinct": distinct, "pointers_s": clock(ours(step, weights.ours)),
            "pointers_no_pdl_s": clock(ours(step, weights.ours, False)),
            **{f"pages_{size // 1024}k_s": clock(ours(step, layers)) for size, layers in paged.items()}})
    for tokens in (32, 256, 8192):
        mapping = token_mapping(tokens, 32)
        on_gpu = mapping.to(DEVICE)
        host = []
        for _ in range(20):
            begin = time.perf_counter()
            step_segments(mapping, 32)
            host.append(time.perf_counter() - begin)
        found["segments"].append({"tokens": tokens, "gpu_graph_s": clock(lambda: step_segments(on_gpu, 32)),  # noqa: B023
                                  "cpu_s": sorted(host)[10]})
    return found


def warm(item: tuple[int, int, list[str]]) -> None:
    """Compile what one shape needs, in a worker process, by running it once on one layer."""
    index, shape, peers = item
    if index < 0:
        details(once, 1)
        return
    slots, max_rank, ranks, shapes = SETS[index]
    tokens, distinct = shapes[shape]
    weights = make_weights(slots, max_rank, ranks, "sglang" in peers, 1)
    step = Step(token_mapping(tokens, distinct), slots, ranks, max_rank)
    for name in peers:
        timed(partial(RUNNERS[name], step, weights), {}, name, once)
    timed(partial(ours, step, weights.ours), {}, "ours", once)


def warm_all(workers: int, peers: list[str], with_details: bool) -> None:
    """Fill Triton's cache in parallel."""
    items = [(-1, 0, peers)] * with_details
    items += [(i, j, peers) for j in reversed(range(len(WIDE))) for i, s in enumerate(SETS) if j < len(s[3])]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        pool.map(warm, items, chunksize=1)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", default=",".join(PEERS), help="comma-separated; '' for none")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", type=float, default=600.0, help="seconds after which no further shape is started")
    parser.add_argument("--details", type=Path, help="also measure reuse, layouts and segment building into this file")
    parser.add_argument("--warm", type=int, default=0, help="first compile ahead in this many processes")
    parser.add_argument("--warm-only", action="store_true", help="stop after compiling")
    args = parser.parse_args()
    peers = [p for p in args.peers.split(",") if p]
    if unknown := set(peers) - set(PEERS):
        parser.error(f"--peers: {sorted(unknown)}: any of {PEERS}")
    if args.warm:
        warm_all(args.warm, peers, args.details is not None)
    if args.warm_only:
        return
    bandwidth, launch_s = copy_bandwidth(), launch_seconds()
    print(f"copy {bandwidth / 1e12:.2f} TB/s, launch {launch_s * 1e6:.2f} us; milliseconds below")
    print("slots      ranks tokens distinct    limit    floor     ours " + " ".join(f"{p[:8]:>8}" for p in PEERS) + " ours/fl  gain",
          flush=True)
    failures: dict[str, str] = {}
    table: list[dict[str, Any]] = []
    for row in rows(peers, args.budget, (bandwidth, launch_s), failures):
        table.append(row)
        print(line(row), flush=True)
        body = ",\n".join("  " + json.dumps(r) for r in table)
        args.out.write_text('{"provenance": ' + json.dumps(provenance(launch_s)) + ',\n"rows": [\n' + body + "\n]}\n")
    for name, reason in failures.items():
        print(f"{name}: null where {reason}")
    if args.details:
        args.details.write_text(json.dumps(details(), indent=1) + "\n")
        print(args.details.read_text())


if __name__ == "__main__":
    main()
