"""Shared builders: adapters, token mappings, and the comparison with the float32 reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from simlora.kernels import GroupWeights, Segments, Tile, bgmv, build_segments, from_tensors, mbgmv, reference_lora

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
POPULARITIES = ("identical", "distinct", "uniform", "zipf", "skewed")
TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 2e-3}
SMALL = (256, (128, 64, 64))
LLAMA = {
    "qkv": (4096, (4096, 1024, 1024)),
    "o": (4096, (4096,)),
    "gate_up": (4096, (14336, 14336)),
    "down": (14336, (4096,)),
}
Kernel = Callable[..., object]
one_row = partial(bgmv, shrink=Tile(block=256), expand=Tile(block=256))
panel = partial(mbgmv, shrink=Tile(block=256), expand=Tile(block=128))
panel_in_turns = partial(
    mbgmv,
    shrink=Tile(block=64, nr=32, num_warps=2, programs=1),
    expand=Tile(block=64, num_warps=2, programs=1),
)
"""Fixed tiles: the kernels for tiles of one row, and the panel kernels, whose programs work on one row tile or on
several in turn."""


@dataclass(frozen=True)
class Group:
    """A projection group with its adapters."""

    weights: GroupWeights
    a: list[list[torch.Tensor]]
    b: list[list[torch.Tensor]]


def make_group(
    ranks: Sequence[int], width: int, outs: Sequence[int], dtype: torch.dtype = torch.bfloat16, seed: int = 0
) -> Group:
    """Random adapters of these ranks (rank 0: a slot without weights), each with its own scaling."""
    generator = torch.Generator().manual_seed(seed)

    def matrix(rank: int, columns: int) -> torch.Tensor:
        return (torch.randn(max(rank, 1), columns, generator=generator) * 0.1).to(dtype).to(DEVICE)

    a = [[matrix(r, width) for r in ranks] for _ in outs]
    b = [[matrix(r, out) for r in ranks] for out in outs]
    return Group(from_tensors(a, b, [0.5 + 0.25 * i for i in range(len(ranks))], ranks), a, b)


def popularity(kind: str, tokens: int, slots: int, seed: int = 0) -> torch.Tensor:
    """int32 adapter of each token."""
    generator = torch.Generator().manual_seed(seed)
    if kind == "identical":
        ids = torch.full((tokens,), slots - 1)
    elif kind == "distinct":
        ids = torch.arange(tokens) % slots
    elif kind == "skewed":
        ids = torch.where(
            torch.rand(tokens, generator=generator) < 0.9, 0, torch.randint(slots, (tokens,), generator=generator)
        )
    else:
        share = torch.ones(slots) if kind == "uniform" else 1.0 / torch.arange(1, slots + 1) ** 1.5
        ids = torch.multinomial(share, tokens, replacement=True, generator=generator) if tokens else torch.zeros(0)
    return ids.to(torch.int32)


def with_base(mapping: torch.Tensor, every: int = 4) -> torch.Tensor:
    """Every fourth token becomes a base token."""
    mapping = mapping.clone()
    mapping[1::every] = -1
    return mapping


def relative_error(value: torch.Tensor, reference: torch.Tensor) -> float:
    """Norm of the difference over the norm of the reference; infinite for NaN."""
    if reference.numel() == 0:
        return 0.0
    error = ((value.float() - reference).norm() / reference.norm().clamp(min=1e-20)).item()
    return error if error == error else float("inf")


def check_adds_delta(kernel: Kernel, group: Group, mapping: torch.Tensor, rows: int, **arguments: object) -> None:
    """The kernel adds the reference's delta into y and leaves base rows and memory around y alone.

    Poisoned first: y lies inside a buffer of NaN, so that a stray write or read shows.
    """
    weights = group.weights
    tokens, width = int(mapping.shape[0]), sum(weights.out_features)
    x = torch.randn(tokens, weights.in_features, device=DEVICE).to(weights.dtype)
    around = torch.full((tokens, width + 16), float("nan"), device=DEVICE, dtype=weights.dtype)
    y = around[:, 8 : 8 + width]
    start = torch.randn(tokens, width, device=DEVICE).to(weights.dtype)
    y.copy_(start)
    segments: Segments = build_segments(mapping.to(DEVICE), weights.slots, rows)
    kernel(x, weights, segments, y, **arguments)
    expected = reference_lora(x, weights, mapping, start)
    assert relative_error(y, expected) < TOLERANCE[weights.dtype]
    base = (mapping < 0).to(DEVICE)
    assert torch.equal(y[base], start[base])
    assert around[:, :8].isnan().all() and around[:, 8 + width :].isnan().all()
