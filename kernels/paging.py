"""Paged adapter weights: one pool of fixed-size pages, a page table row for each adapter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import torch

from .errors import require
from .layout import GroupWeights, check_group

PAGE_BYTES = (16 * 1024, 64 * 1024)


@dataclass(frozen=True)
class GroupShape:
    """Widths of one projection group: in_features and the out_features of its slices."""

    in_features: int
    out_features: tuple[int, ...]


@dataclass(frozen=True)
class PagePlan:
    """Where each group of a model lies in an adapter's linear space, in units of (elements / rank).

    An adapter of rank r is rank * width elements: for each group in order, A of every slice, then B of every slice,
    each rank-major. Every matrix therefore starts at rank * unit, whatever the rank, and a shared pool holds mixed
    ranks.
    """

    groups: tuple[GroupShape, ...]
    page_bytes: int

    def __post_init__(self) -> None:
        require(self.page_bytes in PAGE_BYTES, f"page_bytes: {self.page_bytes}, one of {PAGE_BYTES} allowed")
        require(self.block_limit >= 64, "groups: every width must be a multiple of 64 for paged weights")

    @property
    def page_elements(self) -> int:
        """Two-byte elements in a page."""
        return self.page_bytes // 2

    @property
    def width(self) -> int:
        """Elements of an adapter divided by its rank."""
        return sum(g.in_features * len(g.out_features) + sum(g.out_features) for g in self.groups)

    @property
    def block_limit(self) -> int:
        """Largest power of two that divides every width and the page: a tile of this many columns never straddles
        pages."""
        common = self.page_elements
        for group in self.groups:
            common = gcd(common, group.in_features, *group.out_features)
        return common & -common

    def units(self, index: int) -> tuple[list[int], list[int]]:
        """(A units, B units) of the slices of group `index`."""
        start = sum(g.in_features * len(g.out_features) + sum(g.out_features) for g in self.groups[:index])
        group = self.groups[index]
        a = [start + part * group.in_features for part in range(len(group.out_features))]
        start += group.in_features * len(group.out_features)
        b = [start + sum(group.out_features[:part]) for part in range(len(group.out_features))]
        return a, b

    def pages(self, rank: int) -> int:
        """Pages that an adapter of this rank needs."""
        return -(-rank * self.width // self.page_elements)


def pack_adapter(
    plan: PagePlan, a: Sequence[Sequence[torch.Tensor]], b: Sequence[Sequence[torch.Tensor]]
) -> torch.Tensor:
    """One adapter's linear space, zero-filled up to a whole page: [pages, page_elements].

    a[group][slice]: [rank, in]; b[group][slice]: [rank, out] (rank-major).
    """
    parts = [t.reshape(-1) for group in range(len(plan.groups)) for t in (*a[group], *b[group])]
    flat = torch.cat(parts)
    rank = int(a[0][0].shape[0])
    require(flat.numel() == rank * plan.width, f"adapter: {flat.numel()} elements, {rank * plan.width} needed")
    pages = torch.zeros(plan.pages(rank) * plan.page_elements, dtype=flat.dtype, device=flat.device)
    pages[: flat.numel()] = flat
    return pages.view(-1, plan.page_elements)


def paged_group(
    plan: PagePlan,
    index: int,
    pool: torch.Tensor,
    page_table: torch.Tensor,
    ranks: Sequence[int],
    scaling: Sequence[float] | torch.Tensor,
) -> GroupWeights:
    """Weights of group `index` over a page pool.

    pool: [pages, page_elements]. page_table: int32 [slots, pages of the largest adapter]; entries beyond an adapter's
    own pages are not read. Refused: other table dtypes, a pool of another page size, a table too narrow for a rank.
    """
    group = plan.groups[index]
    check_group(group.out_features, ranks, pool.dtype)
    require(
        pool.dim() == 2 and pool.shape[1] == plan.page_elements and pool.is_contiguous(),
        f"pool: shape {tuple(pool.shape)}, contiguous [pages, {plan.page_elements}] needed",
    )
    require(
        page_table.dtype == torch.int32 and page_table.dim() == 2 and page_table.is_contiguous(),
        "page_table: contiguous int32 [slots, pages] needed",
    )
    require(page_table.shape[0] == len(ranks), f"page_table: {page_table.shape[0]} rows for {len(ranks)} slots")
    need = plan.pages(max(ranks, default=0))
    require(page_table.shape[1] >= need, f"page_table: {page_table.shape[1]} pages a row, {need} needed")
    require(pool.data_ptr() % 16 == 0, "pool: must be aligned to 16 bytes")
    device = pool.device
    scale = torch.as_tensor(scaling, dtype=torch.float32, device=device)
    require(tuple(scale.shape) == (len(ranks),), f"scaling: shape {tuple(scale.shape)}, ({len(ranks)},) needed")
    a_units, b_units = (torch.tensor(u, dtype=torch.int64, device=device) for u in plan.units(index))
    return GroupWeights(
        in_features=group.in_features,
        out_features=group.out_features,
        host_ranks=tuple(int(r) for r in ranks),
        ranks=torch.tensor(list(ranks), dtype=torch.int32, device=device),
        scaling=scale,
        a_table=page_table,
        b_table=page_table,
        pool=pool,
        a_units=a_units,
        b_units=b_units,
        page_elements=plan.page_elements,
        block_limit=plan.block_limit,
    )
