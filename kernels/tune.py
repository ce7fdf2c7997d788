"""Choose tiles on this machine's GPU:  python -m simlora.kernels.tune --out kernels/tuned --budget 240

Every kernel of every projection group is timed alone over 32 layers of distinct weights, in one CUDA graph, for mappings of
all-distinct and of identical adapters; a captured graph must serve both, so the tile with the least sum of the two times,
each relative to its own best, is kept.
"""
from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from triton.errors import TritonError

from . import decode, prefill
from .apply import PREFILL_TOKENS
from .layout import GroupWeights
from .measure import LLAMA_8B, Group, graph_time, layer_weights, token_mapping
from .segments import Segments, build_segments
from .sgmv import partials
from .tiles import Tile, entry

MOST_SPLITS = 32
"""Partial sums beyond this many parts cost more to add up than they hide."""


@dataclass(frozen=True)
class Case:
    """One shape to tune: adapters of these ranks in the slots, tokens of the step, adapters in the mixed mapping."""

    ranks: tuple[int, ...]
    tokens: int
    distinct: int

    @property
    def phase(self) -> str:
        """Which kernels serve it."""
        return "prefill" if self.tokens >= PREFILL_TOKENS else "decode"


SETS: tuple[tuple[tuple[int, ...], tuple[tuple[int, int], ...]], ...] = (
    ((16,) * 32, ((1, 1), (2, 2), (4, 4), (8, 8), (16, 16), (32, 32), (64, 32), (128, 32), (256, 32),
                  (512, 8), (2048, 8), (8192, 8))),
    ((8, 16, 32, 64) * 8, ((8, 8), (32, 32), (64, 32), (128, 32), (256, 32), (2048, 8), (8192, 8))),
    ((64,) * 8, ((1, 1), (2, 2), (8, 8), (32, 8), (128, 8), (512, 8), (2048, 8), (8192, 8))),
    ((16,) * 128, ((64, 64), (128, 128), (256, 128))),
)


def candidates(kernel: str, phase: str, rank_pad: int, slices: int, width: int) -> Iterator[Tile]:
    """Tiles worth timing."""
    if phase == "decode" and kernel == "shrink":
        grid = ((16, 256, 4), (16, 512, 4), (16, 512, 8), (16, 1024, 4), (16, 1024, 8), (32, 256, 4), (32, 512, 8),
                (64, 256, 4), (64, 256, 8), (64, 512, 8))
        for nr, block, warps in grid:
            if nr < 2 * slices * rank_pad and width <= MOST_SPLITS * block:
                yield from (Tile(block=block, nr=nr, vector=v, num_warps=warps) for v in (0, 2, 16))
    elif phase == "decode":
        for elements, warps in ((2048, 4), (4096, 2), (4096, 4), (8192, 4), (8192, 8), (16384, 4), (16384, 8)):
            block = max(32, elements // rank_pad)
            yield from (Tile(block=block, vector=v, num_warps=warps) for v in (0, 2, 16))
    elif kernel == "shrink":
        nr = min(256, 1 << (slices * rank_pad - 1).bit_length())
        for block, warps, stages in ((64, 4, 3), (64, 4, 4), (128, 4, 3), (128, 8, 3), (64, 8, 3)):
            yield from (Tile(block=block, nr=nr, splits=s, num_warps=warps, num_stages=stages) for s in (1, 2, 4, 8))
            if nr > 64:
                yield from (Tile(block=block, nr=64, splits=s, num_warps=warps, num_stages=stages) for s in (2, 4))
    else:
        for block, warps in ((64, 4), (128, 4), (128, 8), (256, 8)):
            for chunk, stages in ((1, 1), (4, 1), (4, 2), (8, 2), (8, 3)):
                if rank_pad * block <= 16384:
                    yield Tile(block=block, chunk=chunk, num_warps=warps, num_stages=stages)


class Bench:
    """Inputs of one case and one group, and a timer for one kernel over all layers."""

    def __init__(self, group: Group, weights: list[GroupWeights], case: Case, rows: int) -> None:
        self.weights, self.case, self.group = weights, case, group
        self.x = torch.randn(case.tokens, group.in_features, device="cuda", dtype=weights[0].dtype)
        self.y = torch.zeros(case.tokens, sum(group.out_features), device="cuda", dtype=weights[0].dtype)
        self.maps = [build_segments(token_mapping(case.tokens, d).cuda(), weights[0].slots, rows)
                     for d in sorted({case.distinct, 1}, reverse=True)]

    def seconds(self, kernel: str, tile: Tile, segments: Segments, splits: int, replays: int = 6) -> float:
        """Median seconds over all layers."""
        phase = decode if self.case.phase == "decode" else prefill
        if kernel == "shrink":
            parts = (decode.decode_splits(self.weights[0], segments, tile) if phase is decode
                     else prefill.prefill_splits(self.weights[0], tile))
        else:
            parts = splits
        h = partials(self.x, self.weights[0], parts).normal_()

        def run() -> None:
            for w in self.weights:
                if kernel == "shrink":
                    phase.launch_shrink(self.x, w, segments, h, tile)
                else:
                    phase.launch_expand(h, w, segments, self.y, tile)

        return graph_time(run, replays, 1)


def best_tile(bench: Bench, kernel: str, log: list[dict[str, Any]], splits: int) -> Tile:
    """The candidate with the least sum of relative times over the mappings."""
    weights, case = bench.weights[0], bench.case
    timed: list[tuple[Tile, list[float]]] = []
    for tile in candidates(kernel, case.phase, weights.rank_pad, weights.slices, weights.in_features):
        try:
            timed.append((tile, [bench.seconds(kernel, tile, m, splits) for m in bench.maps]))
        except (RuntimeError, ValueError, TritonError) as failed:  # too many registers or too much shared memory for this tile
            log.append({"group": bench.group.name, "kernel": kernel, "tile": str(tile), "error": repr(failed)[:200]})
    floor = [min(times[i] for _, times in timed) for i in range(len(bench.maps))]
    scored = sorted(timed, key=lambda pair: sum(t / f for t, f in zip(pair[1], floor, strict=True)))
    for tile, times in scored:
        log.append({"group": bench.group.name, "kernel": kernel, "ranks": sorted(set(case.ranks)), "slots": len(case.ranks),
                    "tokens": case.tokens, "rows": bench.maps[0].rows, "splits": splits, "seconds": times, "tile": str(tile)})
    return scored[0][0]


def tune_case(case: Case, layers: list[list[GroupWeights]], rows: int, log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tuned entries of one case: a shrink and an expand tile for every group."""
    found = []
    for i, group in enumerate(LLAMA_8B):
        weights = [layer[i] for layer in layers]
        bench = Bench(group, weights, case, rows)
        shrink = best_tile(bench, "shrink", log, 0)
        splits = (decode.decode_splits(weights[0], bench.maps[0], shrink) if case.phase == "decode"
                  else prefill.prefill_splits(weights[0], shrink))
        expand = best_tile(bench, "expand", log, splits)
        for kernel, tile in (("shrink", shrink), ("expand", expand)):
            found.append(entry(decode.shape_of(kernel, case.phase, weights[0], bench.maps[0]), tile))
    return found


def compile_share(item: tuple[tuple[int, ...], int, int, str]) -> None:
    """Compile one kernel's candidates into Triton's cache by launching them once on one layer (a worker process)."""
    ranks, tokens, group_index, kernel = item
    group = LLAMA_8B[group_index]
    weights = layer_weights([group], ranks, 1)[0]
    case = Case(ranks, tokens, len(ranks))
    bench = Bench(group, weights, case, 64 if case.phase == "prefill" else 16)
    blocks = (256, 512, 1024) if case.phase == "decode" else ()
    parts = {-(-group.in_features // block) for block in blocks} or {1, 2, 4, 8}
    for tile in candidates(kernel, case.phase, weights[0].rank_pad, weights[0].slices,
                           weights[0].in_features):
        for splits in sorted(p for p in parts if p <= MOST_SPLITS) if kernel == "expand" else (0,):
            try:
                bench.seconds(kernel, tile, bench.maps[0], splits, replays=1)
            except (RuntimeError, ValueError, TritonError):
                continue


def precompile(workers: int) -> None:
    """Fill Triton's cache in parallel; kernels are keyed by group shape, rank_pad and phase."""
    work = [(ranks, tokens, g, kernel) for tokens in (32, 2048) for kernel in ("expand", "shrink")
            for ranks in ((16,) * 8, (8, 16, 32, 64) * 2) for g in range(4)]
    with multiprocessing.get_context("spawn").Pool(min(workers, len(work))) as pool:
        pool.map(compile_share, work, chunksize=1)


def main(argv: Iterable[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the table, or a .json file")
    parser.add_argument("--log", type=Path, help="every timing, as JSON lines")
    parser.add_argument("--budget", type=float, default=240.0, help="seconds after which no further case is started")
    parser.add_argument("--workers", type=int, default=16, help="processes that compile ahead")
    args = parser.parse_args(None if argv is None else list(argv))
    begin, log, entries = time.monotonic(), [], []  # type: float, list[dict[str, Any]], list[dict[str, Any]]
    precompile(args.workers)
    print(f"compiled after {time.monotonic() - begin:.0f} s", flush=True)
    for ranks, shapes in SETS:
        layers = layer_weights(LLAMA_8B, ranks)
        for tokens, distinct in shapes:
            if time.monotonic() - begin > args.budget:
                print("budget spent", flush=True)
                break
            case = Case(ranks, tokens, distinct)
            entries += tune_case(case, layers, 64 if case.phase == "prefill" else 16, log)
            print(f"{time.monotonic() - begin:5.0f} s  ranks {sorted(set(ranks))} slots {len(ranks)} tokens {tokens}", flush=True)
        del layers
        torch.cuda.empty_cache()
    name = torch.cuda.get_device_name(0)
    path = args.out if args.out.suffix == ".json" else args.out / (name.lower().replace(" ", "-") + ".json")
    rows = ",\n".join("  " + json.dumps(e) for e in entries)
    head = json.dumps({"gpu": name, "torch": torch.__version__, "command": "python -m simlora.kernels.tune --out kernels/tuned"})
    path.write_text(head[:-1] + ', "entries": [\n' + rows + "\n]}\n")
    if args.log:
        args.log.write_text("\n".join(json.dumps(item) for item in log) + "\n")


if __name__ == "__main__":
    main()
