"""Adapter weights of one projection group, addressed through a pointer array or a page table.

Both matrices are stored rank-major: A as [rank, in_features], B transposed as [rank, out_features]. Row j of both then
belongs to rank component j, an adapter of rank r holds r rows of each, and no storage or traffic is padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from .errors import require
from .launch import power_of_two

MAX_RANK = 256
MAX_SLICES = 3
DTYPES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class GroupWeights:
    """Every resident adapter's A and B for one projection group (one base linear, with 1 to 3 fused slices).

    ranks: int32 [slots], 0 = slot without weights for this group. scaling: float32 [slots], alpha / r (rsLoRA alpha /
    sqrt(r)). a_table, b_table: int64 [slices, slots] addresses, or one int32 [slots, pages] page table for both.
    pool: [pages, page_elements] for the paged layout, else any tensor of the weights' dtype. page_elements: 0 =
    pointers. a_units, b_units: int64 [slices]; a paged matrix starts at element rank * unit of its adapter.
    """

    in_features: int
    out_features: tuple[int, ...]
    host_ranks: tuple[int, ...]
    ranks: torch.Tensor
    scaling: torch.Tensor
    a_table: torch.Tensor
    b_table: torch.Tensor
    pool: torch.Tensor
    a_units: torch.Tensor
    b_units: torch.Tensor
    page_elements: int = 0
    block_limit: int = 0
    aligned: bool = True
    stored_rank: int = 0
    owners: tuple[tuple[torch.Tensor, ...], ...] = field(default=(), repr=False)

    @property
    def slices(self) -> int:
        """Fused slices: 3 for q/k/v, 2 for gate/up, else 1."""
        return len(self.out_features)

    @property
    def slots(self) -> int:
        """Adapters addressable in this group."""
        return len(self.host_ranks)

    @property
    def max_rank(self) -> int:
        """Largest rank present."""
        return max(self.host_ranks, default=0)

    @property
    def rank_pad(self) -> int:
        """Power of two >= max(16, largest rank): the tile's rank extent, of which only own rows are read."""
        return max(16, power_of_two(max(1, self.max_rank)))

    @property
    def dtype(self) -> torch.dtype:
        """Weights' dtype."""
        return self.pool.dtype

    def dense(self, slot: int, part: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(A [rank, in], B transposed [rank, out]) of one slot and slice, read through the table. For references."""
        rank = self.host_ranks[slot]
        if not self.page_elements:
            a, b = self.owners[part * self.slots + slot]
            return a[:rank], b[:rank]
        out = self.out_features[part]
        a = self._paged(slot, rank * int(self.a_units[part]), rank * self.in_features)
        b = self._paged(slot, rank * int(self.b_units[part]), rank * out)
        return a.view(rank, self.in_features), b.view(rank, out)

    def _paged(self, slot: int, first: int, count: int) -> torch.Tensor:
        element = torch.arange(first, first + count, device=self.pool.device)
        page = self.a_table[slot, element // self.page_elements].long()
        return self.pool.view(-1)[page * self.page_elements + element % self.page_elements]


def output_block(weights: GroupWeights, block: int) -> int:
    """Outputs of a program: the tile's, no more than the widest slice rounded up or a page boundary allows."""
    block = max(16, min(block, power_of_two(max(weights.out_features))))
    return min(block, weights.block_limit) if weights.page_elements else block


def padded_widths(out_features: Sequence[int]) -> tuple[int, int, int]:
    """Three slice widths; absent slices repeat the first, so that a kernel argument keeps its divisibility."""
    first = out_features[0]
    rest = list(out_features[1:]) + [first] * (3 - len(out_features))
    return first, rest[0], rest[1]


def check_group(out_features: Sequence[int], ranks: Sequence[int], dtype: torch.dtype) -> None:
    """Refuse groups the kernels cannot take."""
    require(
        1 <= len(out_features) <= MAX_SLICES, f"out_features: {len(out_features)} slices, 1 to {MAX_SLICES} allowed"
    )
    require(dtype in DTYPES, f"weights: dtype {dtype}, bfloat16 or float16 allowed")
    for slot, rank in enumerate(ranks):
        require(0 <= rank <= MAX_RANK, f"ranks[{slot}]: {rank}, 0 to {MAX_RANK} allowed")


def from_tensors(
    a: Sequence[Sequence[torch.Tensor]],
    b: Sequence[Sequence[torch.Tensor]],
    scaling: Sequence[float] | torch.Tensor,
    ranks: Sequence[int] | None = None,
) -> GroupWeights:
    """Pointer-array weights over existing tensors, which are not copied.

    a[slice][slot]: [rows, in_features]; b[slice][slot]: [rows, out_features of the slice] (B transposed: rank-major).
    ranks: own rank of each slot when the tensors hold more rows (padded storage); default: their row count.
    Refused: rows not contiguous, mixed dtypes or devices, unequal widths, ranks above the rows stored or above 256.
    """
    require(len(a) == len(b) and len(a) > 0, "a, b: one list of adapters for each slice, the same number of slices")
    require(all(len(part) == len(a[0]) for part in (*a, *b)), "a, b: the same number of slots in every slice")
    require(len(a[0]) > 0, "a, b: at least one slot")
    first = a[0][0]
    own = [int(t.shape[0]) for t in a[0]] if ranks is None else [int(r) for r in ranks]
    require(len(own) == len(a[0]), f"ranks: {len(own)} entries for {len(a[0])} slots")
    out_features = tuple(int(part[0].shape[-1]) for part in b)
    check_group(out_features, own, first.dtype)
    for part in range(len(a)):
        for slot in range(len(own)):
            _check_matrix(a[part][slot], f"a[{part}][{slot}]", own[slot], int(first.shape[-1]), first)
            _check_matrix(b[part][slot], f"b[{part}][{slot}]", own[slot], out_features[part], first)
    every = [t for part in (*a, *b) for t in part]
    aligned = all(t.data_ptr() % 16 == 0 for t in every) and all(w % 8 == 0 for w in (*out_features, first.shape[-1]))
    device = first.device
    return GroupWeights(
        in_features=int(first.shape[-1]),
        out_features=out_features,
        host_ranks=tuple(own),
        ranks=torch.tensor(own, dtype=torch.int32, device=device),
        scaling=_scaling(scaling, len(own), device),
        a_table=_addresses(a, device),
        b_table=_addresses(b, device),
        pool=first,
        a_units=torch.zeros(len(a), dtype=torch.int64, device=device),
        b_units=torch.zeros(len(a), dtype=torch.int64, device=device),
        aligned=aligned,
        stored_rank=min(int(t.shape[0]) for t in every),
        owners=tuple((a[part][slot], b[part][slot]) for part in range(len(a)) for slot in range(len(own))),
    )


def _check_matrix(matrix: torch.Tensor, name: str, rank: int, width: int, like: torch.Tensor) -> None:
    require(matrix.dim() == 2, f"{name}: {matrix.dim()} dimensions, 2 needed ([rank, width])")
    require(matrix.shape[1] == width, f"{name}: width {matrix.shape[1]}, {width} needed")
    require(matrix.shape[0] >= rank, f"{name}: {matrix.shape[0]} rows stored, rank {rank} needed")
    require(matrix.stride() == (width, 1) or matrix.shape[0] <= 1, f"{name}: rows must be contiguous and adjacent")
    require(matrix.dtype == like.dtype, f"{name}: dtype {matrix.dtype}, {like.dtype} needed")
    require(matrix.device == like.device, f"{name}: device {matrix.device}, {like.device} needed")


def _scaling(scaling: Sequence[float] | torch.Tensor, slots: int, device: torch.device) -> torch.Tensor:
    values = torch.as_tensor(scaling, dtype=torch.float32, device=device)
    require(tuple(values.shape) == (slots,), f"scaling: shape {tuple(values.shape)}, ({slots},) needed")
    return values


def _addresses(parts: Sequence[Sequence[torch.Tensor]], device: torch.device) -> torch.Tensor:
    return torch.tensor([[t.data_ptr() for t in part] for part in parts], dtype=torch.int64, device=device)
