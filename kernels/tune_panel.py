"""Choose tile heights and tiles of the panel kernels on this GPU, after tune:

python -m simlora.kernels.tune_panel --out kernels/tuned

Whole steps are timed, because one kernel alone neither finds its weights in HBM nor runs beside its neighbours. For
each height one shrink and one expand tile for all groups are tried, then the size of the grids, then the second-best
tiles for each group in turn; the tiles that the table holds already are among the candidates. Each step is timed for
mappings of all-distinct and of identical adapters; a captured graph must serve both, so what has the least sum of the
two times, each relative to the same start, is kept, and of the heights likewise.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from triton.errors import TritonError

from . import decode
from .apply import apply_lora
from .layout import GroupWeights
from .mbgmv import mbgmv
from .measure import LLAMA_8B, graph_time, layer_weights, token_mapping
from .segments import Segments, build_segments
from .sgmv import DECODE_ROWS
from .tiles import Shape, Tile, choose, default_tile, entry, gpu_name
from .tune import MAP_WEIGHTS, write_table
from .tune_compile import precompile
from .tune_tiles import expand_tiles, shrink_tiles

LAYERS = 16
"""Layers of a timed step: one adapter's weights of rank 16 in as many layers fill the L2 of an H200."""
PROGRAMS = (16, 64)
"""Grid sizes tried beside the default; the large one lets every row tile have programs of its own."""
Key = tuple[str, int, int]
Choice = dict[Key, Tile]
SETS = (
    ((64,) * 8, ((512, 8, (16, 64)), (32, 8, (1, 8)), (1, 1, (1, 8)), (8, 8, (1, 8)), (128, 8, (8, 16)))),
    (
        (16,) * 32,
        (
            (512, 8, (16, 64)),
            (32, 32, (1, 8)),
            (64, 32, (1, 8)),
            (128, 32, (8, 16)),
            (256, 32, (8, 16)),
            (1, 1, (1, 8)),
            (8, 8, (1, 8)),
            (16, 16, (1, 8)),
        ),
    ),
    (
        (8, 16, 32, 64) * 8,
        ((64, 32, (1, 8)), (32, 32, (1, 8)), (8, 8, (1, 8)), (128, 32, (8, 16)), (256, 32, (8, 16)), (1, 1, (1, 8))),
    ),
    ((16,) * 128, ((128, 128, (1, 8)), (256, 128, (8, 16)), (64, 64, (1, 8)))),
)
"""(ranks, ((tokens, adapters of the spread mapping, heights), ...))."""


def key_of(shape: Shape) -> Key:
    """What tells the tiles of one step apart; o and down share an expand."""
    return shape.kernel, shape.width, shape.slices


class StepBench:
    """One step's inputs and weights, and a timer of the whole step with given tiles."""

    def __init__(
        self, layers: list[list[GroupWeights]], tokens: int, distinct: int, rows: int, clock: Callable[..., float]
    ) -> None:
        self.layers, self.tokens, self.rows, self.clock = layers, tokens, rows, clock
        first, dtype = layers[0][0], layers[0][0].dtype
        self.x = {w: torch.randn(tokens, w, device="cuda", dtype=dtype) for w in {g.in_features for g in LLAMA_8B}}
        self.y = {g.name: torch.zeros(tokens, sum(g.out_features), device="cuda", dtype=dtype) for g in LLAMA_8B}
        self.maps = [
            build_segments(token_mapping(tokens, d).cuda(), first.slots, rows)
            for d in sorted({distinct, 1}, reverse=True)
        ]

    def shapes(self) -> list[Shape]:
        """Keys of the table for this step."""
        found = (
            decode.shape_of(kernel, decode.phase_of(self.maps[0]), w, self.maps[0])
            for w in self.layers[0]
            for kernel in ("shrink", "expand")
        )
        return list({key_of(shape): shape for shape in found}.values())

    def step(self, choice: Choice | None, segments: Segments, layers: int | None = None) -> None:
        """The first layers (None: every layer) with these tiles; None = the table's."""
        for layer in self.layers[:layers]:
            for group, w in zip(LLAMA_8B, layer, strict=True):
                x, y = self.x[group.in_features], self.y[group.name]
                if choice is None:
                    apply_lora(x, w, segments, y)
                else:
                    mbgmv(
                        x,
                        w,
                        segments,
                        y,
                        shrink=choice["shrink", group.in_features, w.slices],
                        expand=choice["expand", sum(group.out_features), w.slices],
                    )

    def seconds(self, choice: Choice | None) -> list[float] | None:
        """Seconds of a step for each mapping; None where this GPU cannot run a tile."""
        try:
            self.step(choice, self.maps[0], 1)
            return [self.clock(partial(self.step, choice, m)) for m in self.maps]
        except (RuntimeError, ValueError, TritonError):  # too many registers or too much shared memory
            return None


class Search:
    """The best tiles found so far for one step at one height."""

    def __init__(self, bench: StepBench, log: list[dict[str, Any]]) -> None:
        self.bench, self.log = bench, log
        self.choice: Choice = {key_of(s): default_tile(s) for s in bench.shapes()}
        self.start = bench.seconds(self.choice)
        assert self.start is not None, "default tiles must run on every GPU"
        self.seconds, self.best = self.start, self.score(self.start)
        self.note("default", self.start)

    def score(self, seconds: Iterable[float]) -> float:
        """Weighted times relative to the start's."""
        assert self.start is not None
        return sum(w * s / max(b, 1e-9) for w, s, b in zip(MAP_WEIGHTS, seconds, self.start, strict=False))

    def note(self, what: str, seconds: list[float]) -> None:
        """Keep one timing in the log."""
        self.log.append(
            {
                "tokens": self.bench.tokens,
                "rows": self.bench.rows,
                "what": what,
                "slots": self.bench.layers[0][0].slots,
                "ranks": self.bench.layers[0][0].rank_pad,
                "us": [round(s * 1e6) for s in seconds],
            }
        )

    def attempt(self, what: str, change: Choice) -> float:
        """Score with these tiles in place of the present ones; kept where it is the best so far."""
        tried = {**self.choice, **change}
        seconds = self.bench.seconds(tried) if tried != self.choice else None
        if seconds is None:
            return float("inf") if tried != self.choice else self.best
        self.note(what, seconds)
        score = self.score(seconds)
        if score < self.best:
            self.best, self.choice, self.seconds = score, tried, seconds
        return score

    def run(self) -> Choice:
        """The table's tiles, all groups at once, the grids, then group by group."""
        gpu, rank_pad = gpu_name(torch.cuda.current_device()), self.bench.layers[0][0].rank_pad
        ranked = {}
        for kernel, tiles in (
            ("shrink", shrink_tiles(self.bench.rows, rank_pad)),
            ("expand", expand_tiles(self.bench.rows, rank_pad)),
        ):
            keys = [k for k in self.choice if k[0] == kernel]
            scores = {tile: self.attempt(f"{kernel} {tile.brief()}", dict.fromkeys(keys, tile)) for tile in tiles}
            ranked[kernel] = sorted(tiles, key=lambda tile: scores[tile])
        for programs in PROGRAMS:
            self.attempt(f"programs {programs}", {k: t.with_programs(programs) for k, t in self.choice.items()})
        for key, held in list(self.choice.items()):
            other = next(t for t in ranked[key[0]] if t.with_programs(held.programs) != held)
            self.attempt(f"{key} {other.brief()}", {key: other.with_programs(held.programs)})
        self.attempt("table", {key_of(s): choose(s, gpu) for s in self.bench.shapes()})
        return self.choice


def tune_case(
    layers: list[list[GroupWeights]],
    case: tuple[int, int, tuple[int, ...]],
    clock: Callable[..., float],
    log: list[dict[str, Any]],
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """(tiles of every height tried, the height chosen) for one step."""
    tokens, distinct, heights = case
    entries, times = [], {}
    for rows in heights:
        bench = StepBench(layers, tokens, distinct, rows, clock)
        if rows == 1 or rows > DECODE_ROWS:
            seconds = bench.seconds(None)
            assert seconds is not None
            times[rows] = seconds
            log.append(
                {
                    "tokens": tokens,
                    "rows": rows,
                    "what": "table",
                    "slots": layers[0][0].slots,
                    "ranks": layers[0][0].rank_pad,
                    "us": [round(s * 1e6) for s in seconds],
                }
            )
        else:
            search = Search(bench, log)
            choice = search.run()
            times[rows] = search.seconds
            entries += [entry(shape, choice[key_of(shape)]) for shape in bench.shapes()]
    least = [min(t[i] for t in times.values()) for i in range(len(next(iter(times.values()))))]
    score = {
        rows: sum(w * t / b for w, t, b in zip(MAP_WEIGHTS, seconds, least, strict=False))
        for rows, seconds in times.items()
    }
    first = layers[0][0]
    return entries, {
        "tokens": tokens,
        "slots": first.slots,
        "rank_pad": first.rank_pad,
        "rows": min(score, key=lambda rows: score[rows]),
    }


def main(argv: Iterable[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the table, or a .json file")
    parser.add_argument("--log", type=Path, help="every timing, as JSON lines")
    parser.add_argument("--budget", type=float, default=120.0, help="seconds after which no further step is started")
    parser.add_argument("--workers", type=int, default=12, help="processes that compile ahead; 0 = none")
    parser.add_argument("--compile-only", action="store_true", help="stop after compiling")
    args = parser.parse_args(None if argv is None else list(argv))
    if args.workers:
        precompile(args.workers)
    if args.compile_only:
        return
    begin, log, entries, heights = time.monotonic(), [], [], []  # type: float, list[Any], list[Any], list[Any]
    clock = partial(graph_time, replays=5, warmups=1, eager=0)
    for ranks, cases in SETS:
        layers = layer_weights(LLAMA_8B, ranks, LAYERS)
        for case in cases:
            if time.monotonic() - begin > args.budget:
                print("budget spent before", sorted(set(ranks)), len(ranks), case, flush=True)
                break
            found, height = tune_case(layers, case, clock, log)
            entries, heights = entries + found, [*heights, height]
            print(f"{time.monotonic() - begin:5.1f} s  ranks {sorted(set(ranks))} {height}", flush=True)
        del layers
        torch.cuda.empty_cache()
        write_table(args.out, entries, heights)
        if args.log:
            args.log.write_text("\n".join(json.dumps(item) for item in log) + "\n")


if __name__ == "__main__":
    main()
