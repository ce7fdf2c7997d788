"""Tile choices: tuned tables for each GPU, and the rule used where no table covers a shape."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from functools import cache, lru_cache
from math import log2
from pathlib import Path
from typing import Any

import torch

from .launch import INTERPRET

PREFILL_TOKENS = 512
"""Tokens of a step from which tiles of 64 rows and the prefill kernels are taken, unless a table says otherwise."""
TABLES = Path(__file__).parent / "tuned"
MAX_SPLITS = 32
"""Parts of in_features at most in decode: more cost the expand more than they hide."""


@dataclass(frozen=True)
class Tile:
    """One kernel's tile. block: columns (shrink) or outputs (expand) of a program, in prefill of one loop step.

    nr: rank rows a program reads (prefill and panel shrink). splits: parts of the columns (prefill shrink). chunk:
    blocks a program works on in turn (prefill expand). maxnreg: registers a thread at most, 0 = the compiler's choice.
    programs: of a panel kernel's grid for each multiprocessor, about, 0 = panel.PROGRAMS.
    """

    block: int
    nr: int = 16
    splits: int = 1
    chunk: int = 1
    num_warps: int = 4
    num_stages: int = 1
    maxnreg: int = 0
    programs: int = 0

    def with_programs(self, programs: int) -> Tile:
        """The same tile with another grid size."""
        return replace(self, programs=programs)

    def brief(self) -> str:
        """Short form for logs: block, rank rows, warps, registers."""
        return f"{self.block}n{self.nr}w{self.num_warps}r{self.maxnreg}"


@dataclass(frozen=True)
class Shape:
    """What a tile is chosen by: kernel ("shrink" | "expand"), phase ("decode": row tiles of one row, "panel8" and
    "panel16": of so many, "prefill"), total width (in_features or the sum of out_features), slices,
    rank_pad, tokens and tile bound."""

    kernel: str
    phase: str
    width: int
    slices: int
    rank_pad: int
    tokens: int
    bound: int


def default_tile(shape: Shape) -> Tile:
    """Tile for a GPU or shape without a table: 32 KiB of weights in flight a program in decode, less for few adapters
    and for tiles of several rows, whose inputs are in flight too."""
    if shape.phase.startswith("panel"):
        low = shape.phase == "panel8"
        if shape.kernel == "shrink":
            return Tile(block=1024 if low else 512, maxnreg=96)
        if shape.rank_pad == 16:
            return Tile(block=1024 if low else 512, maxnreg=128)
        return Tile(block=256, maxnreg=128 if low else 168)
    if shape.phase == "decode":
        few = shape.bound <= 4
        if shape.kernel == "shrink":
            return Tile(block=256 if few else 1024, num_stages=3)
        return Tile(block=256 if few else 1024)
    if shape.kernel == "shrink":
        nr = min(256, 1 << (shape.slices * shape.rank_pad - 1).bit_length())
        return Tile(
            block=64, nr=nr, splits=8 if shape.tokens <= 2048 else 2, num_warps=4 if nr <= 64 else 8, num_stages=3
        )
    return Tile(block=128 if shape.rank_pad <= 64 else 64, chunk=4, num_warps=4)


@cache
def table(gpu: str) -> tuple[tuple[Shape, Tile], ...]:
    """Tuned entries for a GPU name ("NVIDIA H200"), empty where none is committed. Made by `python -m
    simlora.kernels.tune`."""
    path = TABLES / (gpu.lower().replace(" ", "-") + ".json")
    if not path.exists():
        return ()
    return tuple((Shape(**entry["shape"]), Tile(**entry["tile"])) for entry in json.loads(path.read_text())["entries"])


@cache
def rows_table(gpu: str) -> tuple[tuple[int, int, int, int], ...]:
    """(tokens, slots, rank_pad, rows of a tile) entries for a GPU name, empty where none is committed."""
    path = TABLES / (gpu.lower().replace(" ", "-") + ".json")
    if not path.exists():
        return ()
    rows = json.loads(path.read_text()).get("rows", ())
    return tuple((e["tokens"], e["slots"], e["rank_pad"], e["rows"]) for e in rows)


def choose_rows(tokens: int, slots: int, rank_pad: int, gpu: str) -> int:
    """Rows of a tile: the nearest measured choice; where there is none, 16 up to 512 tokens and 64 from there on."""

    def distance(entry: tuple[int, int, int, int]) -> float:
        bound = min(entry[0], entry[1]) / max(1, min(tokens, slots))
        near = 0.1 * abs(log2(entry[1] / slots))  # of equals the one with as many slots
        return near + abs(log2((entry[0] + 1) / (tokens + 1))) + abs(log2(bound)) + 0.5 * abs(log2(entry[2] / rank_pad))

    measured = rows_table(gpu)
    if measured:
        return min(measured, key=distance)[3]
    return 64 if tokens >= PREFILL_TOKENS else 16


def entry(shape: Shape, tile: Tile) -> dict[str, Any]:
    """JSON form of one tuned choice; only fields that differ from the defaults are written."""
    plain = {f.name: f.default for f in fields(Tile)}
    return {"shape": asdict(shape), "tile": {k: v for k, v in asdict(tile).items() if v != plain[k]}}


def _distance(a: Shape, b: Shape) -> float:
    bound = abs(log2((a.bound + 1) / (b.bound + 1)))
    tokens = abs(log2((a.tokens + 1) / (b.tokens + 1)))
    return 4 * abs(log2(a.rank_pad / b.rank_pad)) + 2 * abs(log2(a.width / b.width)) + bound + 0.5 * tokens


@lru_cache(maxsize=4096)
def choose(shape: Shape, gpu: str) -> Tile:
    """Nearest tuned entry of the same kernel, phase and slice count; the default rule where there is none within a
    factor."""
    same = [(s, t) for s, t in table(gpu) if (s.kernel, s.phase, s.slices) == (shape.kernel, shape.phase, shape.slices)]
    if same:
        nearest, tile = min(same, key=lambda pair: _distance(pair[0], shape))
        if nearest.rank_pad == shape.rank_pad:
            return tile
    return default_tile(shape)


@cache
def gpu_name(index: int) -> str:
    """Device name that selects a tuned table; "cpu" without CUDA."""
    return torch.cuda.get_device_name(index) if torch.cuda.is_available() and not INTERPRET else "cpu"
