"""Paged and pointer weights give the same result; layouts that a kernel cannot take are refused with a message."""

from __future__ import annotations

import pytest
import torch
from kernel_cases import (
    DEVICE,
    LLAMA,
    SMALL,
    Group,
    check_adds_delta,
    make_group,
    one_row,
    panel,
    panel_in_turns,
    popularity,
    with_base,
)
from simlora.kernels import (
    GroupShape,
    LayoutError,
    PagePlan,
    apply_lora,
    bgmv,
    build_segments,
    from_tensors,
    mbgmm,
    mbgmv,
    pack_adapter,
    padded,
    padded_bmm,
    paged_group,
    problem_list,
    sgmv_shrink,
)

# Scratch columns beyond an adapter's rank are never written, loaded with the others, and dropped.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def paged(
    shapes: list[tuple[int, tuple[int, ...]]], ranks: tuple[int, ...], page_bytes: int
) -> tuple[list[Group], list[Group]]:
    """(paged groups, the same adapters behind pointers); pages are shuffled over a pool that is poisoned elsewhere."""
    plain = [make_group(ranks, width, outs, seed=i) for i, (width, outs) in enumerate(shapes)]
    plan = PagePlan(tuple(GroupShape(w, o) for w, o in shapes), page_bytes)
    packed = [
        pack_adapter(plan, [[part[i] for part in g.a] for g in plain], [[part[i] for part in g.b] for g in plain])
        for i in range(len(ranks))
    ]
    total = sum(p.shape[0] for p in packed)
    pool = torch.full((total + 3, plan.page_elements), float("nan"), device=DEVICE, dtype=torch.bfloat16)
    where = torch.randperm(total + 3, generator=torch.Generator().manual_seed(0)).to(torch.int32)
    table = torch.full((len(ranks), max(p.shape[0] for p in packed)), -1, dtype=torch.int32)
    start = 0
    for i, pages in enumerate(packed):
        table[i, : len(pages)] = where[start : start + len(pages)]
        pool[where[start : start + len(pages)].long().to(DEVICE)] = pages
        start += len(pages)
    scaling = plain[0].weights.scaling
    groups = [
        Group(paged_group(plan, i, pool, table.to(DEVICE), ranks, scaling), g.a, g.b) for i, g in enumerate(plain)
    ]
    return groups, plain


@pytest.mark.parametrize("page_bytes", [16 * 1024, 64 * 1024])
@pytest.mark.parametrize(("kernel", "rows"), [(one_row, 1), (mbgmm, 32), (bgmv, 1), (panel, 8), (panel_in_turns, 16)])
def test_paged_equals_pointers(kernel, rows, page_bytes) -> None:
    groups, plain = paged([(512, (192,)), SMALL], (8, 16, 5), page_bytes)
    for group, like in zip(groups, plain, strict=True):
        for slot in range(3):
            for part in range(like.weights.slices):
                for one, two in zip(group.weights.dense(slot, part), like.weights.dense(slot, part), strict=True):
                    assert torch.equal(one, two)
    check_adds_delta(kernel, groups[1], with_base(popularity("uniform", 9, 3)), rows)


@pytest.mark.gpu
def test_paged_full_size() -> None:
    groups, _ = paged(list(LLAMA.values()), (8, 16, 32, 64), 64 * 1024)
    for group in groups:
        for kernel, rows, tokens in ((one_row, 1, 5), (panel, 8, 60), (panel_in_turns, 16, 90), (mbgmm, 64, 520)):
            check_adds_delta(kernel, group, with_base(popularity("uniform", tokens, 4)), rows)


def ready() -> tuple[torch.Tensor, Group, torch.Tensor]:
    group = make_group((16, 16), 64, (32,))
    return (
        torch.zeros(3, 64, dtype=torch.bfloat16, device=DEVICE),
        group,
        torch.zeros(3, 32, dtype=torch.bfloat16, device=DEVICE),
    )


def segments(slots: int = 2, rows: int = 16, tokens: int = 3):
    return build_segments(torch.zeros(tokens, dtype=torch.int32, device=DEVICE), slots, rows)


def test_inputs_refused() -> None:
    x, group, y = ready()
    w = group.weights
    for bad, message in (
        (x.float(), "x: dtype"),
        (x[:, :32], "x: shape"),
        (x[0], "x: 1 dimensions"),
        (torch.zeros(3, 128, dtype=torch.bfloat16, device=DEVICE)[:, ::2], "x: columns must be contiguous"),
    ):
        with pytest.raises(LayoutError, match=message):
            mbgmv(bad, w, segments(), y)
    for bad, message in ((y.float(), "y: dtype"), (y[:, :16], "y: shape"), (y.repeat(1, 2)[:, ::2], "y: columns")):
        with pytest.raises(LayoutError, match=message):
            mbgmv(x, w, segments(), bad)
    with pytest.raises(LayoutError, match="segments: 3 slots"):
        apply_lora(x, w, segments(slots=3), y)
    with pytest.raises(LayoutError, match="64 rows a tile, at most 16"):
        mbgmv(x, w, segments(rows=64), y)
    with pytest.raises(LayoutError, match="1 rows a tile, 16 and more"):
        mbgmm(x, w, segments(rows=1), y)
    with pytest.raises(LayoutError, match="rows=1"):
        bgmv(x, w, segments(), y)
    with pytest.raises(LayoutError, match="h: dtype"):
        mbgmv(x, w, segments(), y, h=torch.zeros(1, 3, 16, dtype=torch.bfloat16, device=DEVICE))
    with pytest.raises(LayoutError, match="sgmv takes one rank"):
        sgmv_shrink(x, make_group((8, 16), 64, (32,)).weights, segments())


def test_weights_refused() -> None:
    _, group, _ = ready()
    a, b = group.a, group.b
    for wrong, message in (
        ({"a": [[a[0][0].float(), a[0][1].float()]]}, "dtype torch.float32"),
        ({"a": [[a[0][0]]]}, "number of slots"),
        ({"a": [[a[0][0], a[0][1][:, :32]]]}, "width 32, 64 needed"),
        ({"a": [[a[0][0], a[0][1].t()]]}, "width 16"),
        ({"ranks": [16, 17]}, "16 rows stored, rank 17 needed"),
        ({"ranks": [16, 300]}, "300, 0 to 256"),
        ({"ranks": [16]}, "1 entries for 2 slots"),
        ({"scaling": [1.0]}, "scaling: shape"),
        ({"a": a * 4, "b": b * 4}, "4 slices, 1 to 3"),
    ):
        with pytest.raises(LayoutError, match=message):
            from_tensors(**{"a": a, "b": b, "scaling": [1.0, 1.0], **wrong})


def test_paged_layouts_refused() -> None:
    with pytest.raises(LayoutError, match="multiple of 64"):
        PagePlan((GroupShape(100, (64,)),), 16 * 1024)
    with pytest.raises(LayoutError, match="page_bytes: 4096"):
        PagePlan((GroupShape(128, (64,)),), 4096)
    plan = PagePlan((GroupShape(128, (64,)),), 16 * 1024)
    pool = torch.zeros(4, plan.page_elements, dtype=torch.bfloat16, device=DEVICE)
    table = torch.zeros(2, 1, dtype=torch.int32, device=DEVICE)
    with pytest.raises(LayoutError, match=r"page_table: 1 pages a row, 2 needed"):
        paged_group(plan, 0, pool, table, (64, 8), [1.0, 1.0])
    with pytest.raises(LayoutError, match="contiguous int32"):
        paged_group(plan, 0, pool, table.long(), (8, 8), [1.0, 1.0])
    with pytest.raises(LayoutError, match="pool: shape"):
        paged_group(plan, 0, pool[:, :64], table, (8, 8), [1.0, 1.0])
    x = torch.zeros(3, 128, dtype=torch.bfloat16, device=DEVICE)
    y = torch.zeros(3, 64, dtype=torch.bfloat16, device=DEVICE)
    with pytest.raises(LayoutError, match="paged"):
        padded(x, paged_group(plan, 0, pool, table, (8, 8), [1.0, 1.0]), segments(), y)


def test_other_refusals() -> None:
    x, group, y = ready()
    with pytest.raises(LayoutError, match="rank: 17"):
        padded_bmm(
            x, [torch.stack(group.a[0])], [torch.stack(group.b[0])], torch.zeros(3, device=DEVICE), torch.ones(2), 17, y
        )
    with pytest.raises(LayoutError, match="problem 0: x has 64 columns, w needs 32"):
        problem_list([x], [y], [y])
    with pytest.raises(LayoutError, match="rows: 2"):
        build_segments(torch.zeros(3, dtype=torch.int32), 2, 2)
    with pytest.raises(LayoutError, match="dtype"):
        build_segments(torch.zeros(3), 2)
    with pytest.raises(LayoutError, match="slot 2, below 2"):
        build_segments(torch.full((3,), 2, dtype=torch.int32), 2)
