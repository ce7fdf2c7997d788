"""Choose decode tile heights on this GPU, after tune:  python -m simlora.kernels.tune_rows --out kernels/tuned

A whole step is timed at every height, for mappings of all-distinct and of identical adapters; a captured graph must
serve both, so the height with the least sum of the two times, each relative to its own best, is kept.
"""
from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from .apply import apply_lora
from .layout import GroupWeights
from .measure import LAYERS, LLAMA_8B, graph_time, layer_weights, token_mapping
from .segments import build_segments
from .tune import MAP_WEIGHTS, render, table_path

HEIGHTS = (1, 2, 4, 16)
SETS = (
    ((16,) * 32, ((1, 1), (4, 4), (8, 8), (16, 16), (32, 32), (64, 32), (128, 32), (256, 32))),
    ((16,) * 128, ((64, 64), (128, 128), (256, 128))),
    ((8, 16, 32, 64) * 8, ((1, 1), (8, 8), (32, 32), (64, 32), (128, 32), (256, 32))),
)
"""(ranks, ((tokens, adapters of the spread mapping), ...))."""


def step_seconds(layers: list[list[GroupWeights]], mapping: torch.Tensor, rows: int,
                 clock: Callable[..., float]) -> float:
    """A whole step, every group of every layer, at one tile height."""
    slots, tokens, dtype = layers[0][0].slots, int(mapping.shape[0]), layers[0][0].dtype
    segments = build_segments(mapping.cuda(), slots, rows)
    x = {w: torch.randn(tokens, w, device="cuda", dtype=dtype) for w in {g.in_features for g in LLAMA_8B}}
    y = {g.name: torch.zeros(tokens, sum(g.out_features), device="cuda", dtype=dtype) for g in LLAMA_8B}

    def run() -> None:
        for layer in layers:
            for group, weights in zip(LLAMA_8B, layer, strict=True):
                apply_lora(x[group.in_features], weights, segments, y[group.name])

    return clock(run)


def tune_set(index: int, layers: int, clock: Callable[..., float],
             log: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
    """Entries of one set of adapters."""
    ranks, shapes = SETS[index]
    weights, found = layer_weights(LLAMA_8B, ranks, layers), []
    for tokens, distinct in shapes:
        maps = [token_mapping(tokens, d) for d in sorted({distinct, 1}, reverse=True)]
        timed = {rows: [step_seconds(weights, m, rows, clock) for m in maps] for rows in HEIGHTS}
        best = [max(1e-9, min(t[i] for t in timed.values())) for i in range(len(maps))]
        score = {rows: sum(w * t / b for w, t, b in zip(MAP_WEIGHTS, times, best, strict=False))
                 for rows, times in timed.items()}
        found.append({"tokens": tokens, "slots": len(ranks), "rank_pad": weights[0][0].rank_pad,
                      "rows": min(score, key=lambda rows: score[rows])})
        if log is not None:
            log.append({**found[-1], "ranks": sorted(set(ranks)), "seconds": timed})
    return found


def run_once(run: Callable[[], object]) -> float:
    """In place of graph_time where a run only compiles kernels."""
    run()
    torch.cuda.synchronize()
    return 0.0


def compile_set(index: int) -> None:
    """Compile what one set needs (a worker process)."""
    tune_set(index, 1, run_once)


def main(argv: Iterable[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the table, or a .json file")
    parser.add_argument("--log", type=Path, help="every timing, as JSON lines")
    parser.add_argument("--workers", type=int, default=len(SETS), help="processes that compile ahead; 0 = none")
    parser.add_argument("--compile-only", action="store_true", help="stop after compiling")
    args = parser.parse_args(None if argv is None else list(argv))
    if args.workers:
        with multiprocessing.get_context("spawn").Pool(args.workers) as pool:
            pool.map(compile_set, range(len(SETS)), chunksize=1)
    if args.compile_only:
        return
    log: list[dict[str, Any]] = []
    rows = []
    for index in range(len(SETS)):
        rows += tune_set(index, LAYERS, partial(graph_time, replays=8, warmups=1), log)
        torch.cuda.empty_cache()
    path = table_path(args.out)
    path.write_text(render({**json.loads(path.read_text()), "rows": rows}))
    if args.log:
        args.log.write_text("\n".join(json.dumps(item) for item in log) + "\n")
    for item in log:
        times = {k: [round(t * 1e6) for t in v] for k, v in item["seconds"].items()}
        print(item["tokens"], item["slots"], item["rank_pad"], "rows", item["rows"], times, flush=True)


if __name__ == "__main__":
    main()
