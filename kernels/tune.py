"""Choose tiles for one row and for prefill on this GPU:  python -m simlora.kernels.tune --out kernels/tuned

Every kernel of every projection group is timed alone over 32 layers of distinct weights, in one CUDA graph, for
mappings of all-distinct and of identical adapters; a captured graph must serve both, so the tile with the least sum of
the two times, each relative to its own best, is kept.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from triton.errors import TritonError

from . import decode, prefill
from .layout import GroupWeights
from .measure import LLAMA_8B, Group, graph_time, layer_weights, token_mapping
from .segments import Segments, build_segments
from .sgmv import partials
from .tiles import PREFILL_TOKENS, Tile, entry

MAP_WEIGHTS = (1.0, 0.5)
"""Weight of the all-distinct and of the identical mapping."""


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
    ((16,) * 32, ((1, 1), (8, 8), (32, 32), (64, 32), (128, 32), (256, 32), (512, 8), (2048, 8), (8192, 8))),
    ((8, 16, 32, 64) * 8, ((8, 8), (32, 32), (64, 32), (128, 32), (256, 32), (2048, 8), (8192, 8))),
    ((64,) * 8, ((1, 1), (8, 8), (32, 8), (128, 8), (512, 8))),
    ((16,) * 128, ((128, 128), (256, 128))),
)


def candidates(kernel: str, phase: str, rank_pad: int, slices: int) -> Iterator[Tile]:
    """Tiles worth timing."""
    if phase == "decode" and kernel == "shrink":
        yield from (
            Tile(block=block, num_stages=3, maxnreg=cap) for block, cap in ((256, 0), (512, 0), (1024, 0), (1024, 80))
        )
    elif phase == "decode":
        yield from (
            Tile(block=block, maxnreg=cap) for block, cap in ((256, 0), (512, 0), (1024, 0), (1024, 96), (512, 128))
        )
    elif kernel == "shrink":
        nr = min(256, 1 << (slices * rank_pad - 1).bit_length())
        for block, warps, stages in ((64, 4, 4), (128, 4, 3), (128, 8, 3)):
            yield from (Tile(block=block, nr=nr, splits=s, num_warps=warps, num_stages=stages) for s in (1, 2, 4, 8))
    else:
        for block, warps in ((128, 4), (128, 8), (256, 8)):
            for chunk, stages in ((1, 1), (4, 1), (8, 3)):
                if rank_pad * block <= 16384:
                    yield Tile(block=block, chunk=chunk, num_warps=warps, num_stages=stages)


class Bench:
    """Inputs of one case and one group, and a timer for one kernel over all layers."""

    def __init__(self, group: Group, weights: list[GroupWeights], case: Case, rows: int) -> None:
        self.weights, self.case, self.group = weights, case, group
        self.x = torch.randn(case.tokens, group.in_features, device="cuda", dtype=weights[0].dtype)
        self.y = torch.zeros(case.tokens, sum(group.out_features), device="cuda", dtype=weights[0].dtype)
        spread = {case.distinct, 1} if case.phase == "decode" else {case.distinct}
        self.maps = [
            build_segments(token_mapping(case.tokens, d).cuda(), weights[0].slots, rows)
            for d in sorted(spread, reverse=True)
        ]

    def parts(self, tile: Tile) -> int:
        """Parts that a shrink tile splits the columns into."""
        if self.case.phase == "decode":
            return decode.decode_splits(self.weights[0], self.maps[0], tile)
        return prefill.prefill_splits(self.weights[0], tile)

    def seconds(self, kernel: str, tile: Tile, segments: Segments, splits: int, replays: int = 6) -> float:
        """Median seconds over all layers."""
        phase = decode if self.case.phase == "decode" else prefill
        h = partials(self.x, self.weights[0], splits or self.parts(tile)).normal_()

        def run() -> None:
            for w in self.weights:
                if kernel == "shrink":
                    phase.launch_shrink(self.x, w, segments, h, tile)
                else:
                    phase.launch_expand(h, w, segments, self.y, tile)

        return graph_time(run, replays, 1)


@dataclass(frozen=True)
class Timed:
    """One candidate's seconds for each mapping, and the parts of the partial sums it writes or reads."""

    tile: Tile
    parts: int
    seconds: tuple[float, ...]


def time_all(bench: Bench, kernel: str, parts: int, log: list[dict[str, Any]]) -> list[Timed]:
    """Every candidate of one kernel that this GPU can run."""
    weights, case, found = bench.weights[0], bench.case, []
    for tile in candidates(kernel, case.phase, weights.rank_pad, weights.slices):
        try:
            seconds = tuple(bench.seconds(kernel, tile, m, parts) for m in bench.maps)
        except (RuntimeError, ValueError, TritonError):  # too many registers or too much shared memory for this tile
            continue
        found.append(Timed(tile, parts or bench.parts(tile), seconds))
        log.append(
            {
                "group": bench.group.name,
                "kernel": kernel,
                "ranks": sorted(set(case.ranks)),
                "slots": len(case.ranks),
                "tokens": case.tokens,
                "parts": found[-1].parts,
                "seconds": seconds,
                "tile": str(tile),
            }
        )
    return found


def tune_group(bench: Bench, log: list[dict[str, Any]]) -> tuple[Tile, Tile]:
    """The shrink and expand tiles with the least sum of times, each mapping's relative to the best for it."""

    def score(seconds: Iterable[float], best: Iterable[float]) -> float:
        return sum(weight * s / b for weight, s, b in zip(MAP_WEIGHTS, seconds, best, strict=False))

    shrinks = time_all(bench, "shrink", 0, log)
    least = [min(s.seconds[i] for s in shrinks) for i in range(len(bench.maps))]
    ranked = sorted(shrinks, key=lambda s: score(s.seconds, least))
    kept = {s.parts: s for s in reversed(ranked)}  # the best for each number of parts
    chosen = sorted(kept.values(), key=lambda s: score(s.seconds, least))[:2]
    pairs = [(s, e) for s in chosen for e in time_all(bench, "expand", s.parts, log)]
    totals = [[s.seconds[i] + e.seconds[i] for i in range(len(bench.maps))] for s, e in pairs]
    best = [min(t[i] for t in totals) for i in range(len(bench.maps))]
    pick = min(range(len(pairs)), key=lambda n: score(totals[n], best))
    return pairs[pick][0].tile, pairs[pick][1].tile


def tune_case(
    case: Case, layers: list[list[GroupWeights]], rows: int, log: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Tuned entries of one case: a shrink and an expand tile for every group."""
    found = []
    for i, group in enumerate(LLAMA_8B):
        weights = [layer[i] for layer in layers]
        bench = Bench(group, weights, case, rows)
        for kernel, tile in zip(("shrink", "expand"), tune_group(bench, log), strict=True):
            found.append(entry(decode.shape_of(kernel, case.phase, weights[0], bench.maps[0]), tile))
    return found


def compile_share(item: tuple[tuple[int, ...], int, int, str, int]) -> None:
    """Compile one kernel's candidates into Triton's cache by launching them once on one layer (a worker process)."""
    ranks, tokens, group_index, kernel, parts = item
    group = LLAMA_8B[group_index]
    weights = layer_weights([group], ranks, 1)[0]
    case = Case(ranks, tokens, len(ranks))
    bench = Bench(group, weights, case, 64 if case.phase == "prefill" else 1)
    for tile in candidates(kernel, case.phase, weights[0].rank_pad, weights[0].slices):
        if kernel == "shrink" and tile.splits not in (1, 4):
            continue
        with suppress(RuntimeError, ValueError, TritonError):
            bench.seconds(kernel, tile, bench.maps[0], parts, replays=1)


def precompile(workers: int, phases: Sequence[str]) -> None:
    """Fill Triton's cache in parallel; kernels are keyed by slice count, rank_pad, phase and parts (a power of two)."""
    work = [
        (ranks, tokens, g, kernel, parts)
        for kernel, choices in (("expand", (16, 8, 4, 32, 2)), ("shrink", (0,)))
        for parts in choices
        for ranks in ((8, 16, 32, 64) * 2, (16,) * 8)
        for phase, tokens, most in (("decode", 32, 32), ("prefill", 2048, 8))
        for g in range(3)
        if phase in phases and parts <= most and (parts != 2 or phase == "prefill")
    ]
    with multiprocessing.get_context("spawn").Pool(min(workers, len(work))) as pool:
        pool.map(compile_share, work, chunksize=1)


def main(argv: Iterable[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the table, or a .json file")
    parser.add_argument("--log", type=Path, help="every timing, as JSON lines")
    parser.add_argument("--budget", type=float, default=240.0, help="seconds after which no further case is started")
    parser.add_argument("--workers", type=int, default=16, help="processes that compile ahead")
    parser.add_argument(
        "--phase", choices=("decode", "prefill"), help="tune one phase; the file keeps its other entries"
    )
    parser.add_argument("--tokens", type=int, default=0, help="tune steps of this many tokens only")
    parser.add_argument("--compile-only", action="store_true", help="stop after compiling the candidates")
    args = parser.parse_args(None if argv is None else list(argv))
    phases = (args.phase,) if args.phase else ("decode", "prefill")
    begin, log, entries = time.monotonic(), [], []  # type: float, list[dict[str, Any]], list[dict[str, Any]]
    if args.workers:
        precompile(args.workers, phases)
        print(f"compiled after {time.monotonic() - begin:.0f} s", flush=True)
    if args.compile_only:
        return
    for ranks, shapes in SETS:
        layers = layer_weights(LLAMA_8B, ranks)
        for case in (Case(ranks, *shape) for shape in shapes):
            if case.phase not in phases or args.tokens not in (0, case.tokens):
                continue
            if time.monotonic() - begin > args.budget:
                print("budget spent", flush=True)
                break
            entries += tune_case(case, layers, 64 if case.phase == "prefill" else 1, log)
            done = f"ranks {sorted(set(ranks))} slots {len(ranks)} tokens {case.tokens}"
            print(f"{time.monotonic() - begin:5.0f} s  {done}", flush=True)
        del layers
        torch.cuda.empty_cache()
    write_table(args.out, entries)
    if args.log:
        args.log.write_text("\n".join(json.dumps(item) for item in log) + "\n")


def table_path(out: Path) -> Path:
    """The table's file: `out` itself, or this GPU's file in that folder."""
    return out if out.suffix == ".json" else out / (torch.cuda.get_device_name(0).lower().replace(" ", "-") + ".json")


def render(table: dict[str, Any]) -> str:
    """A table as JSON, one entry a line."""
    head = json.dumps({k: v for k, v in table.items() if k not in ("entries", "rows")})
    parts = {k: ",\n".join("  " + json.dumps(e) for e in table.get(k, [])) for k in ("entries", "rows")}
    return head[:-1] + "".join(f', "{k}": [\n{body}\n]' for k, body in parts.items()) + "}\n"


def write_table(out: Path, entries: list[dict[str, Any]], rows: Sequence[dict[str, int]] = ()) -> None:
    """Write the GPU's table; old entries are kept, and one key has one entry, the latest.

    rows: tile heights, (tokens, slots, rank_pad) -> rows.
    """
    path = table_path(out)
    old = json.loads(path.read_text()) if path.exists() else {"entries": [], "rows": []}
    merged = {json.dumps(e["shape"]): e for e in old["entries"] + entries}
    heights = {(e["tokens"], e["slots"], e["rank_pad"]): e for e in (*old.get("rows", []), *rows)}
    path.write_text(
        render(
            {
                "gpu": torch.cuda.get_device_name(0),
                "torch": torch.__version__,
                "entries": list(merged.values()),
                "command": "; ".join(
                    f"python -m simlora.kernels.{name} --out kernels/tuned" for name in ("tune", "tune_panel")
                ),
                "rows": list(heights.values()),
            }
        )
    )


if __name__ == "__main__":
    main()
