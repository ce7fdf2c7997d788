"""Segment building, grouped GEMM, tile choice, tensor-parallel shards."""

from __future__ import annotations

import json

import pytest
import torch
from kernel_cases import DEVICE, LLAMA, POPULARITIES, make_group, popularity, relative_error, with_base
from simlora.kernels import (
    build_segments,
    from_tensors,
    grouped_gemm,
    mbgmv,
    problem_list,
    reference_grouped_gemm,
    reference_lora,
    shard_column,
    shard_row,
    tile_bound,
    to_device,
)
from simlora.kernels.tiles import TABLES, Shape, Tile, choose, choose_rows, rows_table, table


@pytest.mark.parametrize("kind", POPULARITIES)
@pytest.mark.parametrize("rows", [1, 8, 16, 64])
def test_tiles_cover_every_adapter_token_once(kind, rows) -> None:
    for tokens in (0, 1, 15, 64, 300):
        mapping = with_base(popularity(kind, tokens, 9))
        found = build_segments(mapping, 9, rows)
        assert sorted(found.order.tolist()) == list(range(tokens))
        seen = []
        for adapter, first, length, used in found.tiles.tolist():
            assert length <= rows and used == int((found.tiles[:, 2] > 0).sum())
            covered = found.order[first : first + length].tolist()
            assert all(int(mapping[t]) == adapter for t in covered)
            seen += covered
        assert sorted(seen) == (mapping >= 0).nonzero().flatten().tolist()
        lengths = found.tiles[:, 2].tolist()
        assert lengths == [n for n in lengths if n] + [0] * lengths.count(0)
        assert found.bound == tile_bound(tokens, 9, rows)
        assert to_device(found, "cpu").counts.tolist() == [int((mapping == i).sum()) for i in range(9)]


def test_tile_bound_is_reached_and_never_passed() -> None:
    for tokens, slots, rows in ((64, 4, 16), (33, 4, 16), (100, 200, 16)):
        worst = 0
        for big in range(tokens + 1):
            rest = torch.arange(tokens - big) % slots
            mapping = torch.cat((torch.zeros(big), rest)).to(torch.int32)
            worst = max(worst, int((build_segments(mapping, slots, rows).tiles[:, 2] > 0).sum()))
        assert worst <= tile_bound(tokens, slots, rows)
    ones = torch.tensor([0] * 1 + [1] * 1 + [2] * 17, dtype=torch.int32)
    assert int((build_segments(ones, 3, 16).tiles[:, 2] > 0).sum()) == tile_bound(19, 3, 16)


@pytest.mark.parametrize("transposed", [True, False])
def test_grouped_gemm_of_ragged_problems(transposed) -> None:
    shapes = ((1, 8, 64), (17, 24, 100), (0, 16, 64), (33, 70, 40))
    for dtype in (torch.bfloat16, torch.float16):
        x = [torch.randn(m, k, device=DEVICE).to(dtype) for m, _, k in shapes]
        w = [torch.randn(*((n, k) if transposed else (k, n)), device=DEVICE).to(dtype) for _, n, k in shapes]
        out = [torch.full((m, n), float("nan"), device=DEVICE, dtype=dtype) for m, n, _ in shapes]
        problems = problem_list(x, w, out, transposed)
        expected = reference_grouped_gemm(list(zip(x, w, strict=True)), transposed)
        grouped_gemm(problems)
        assert all(relative_error(o, e) < 1e-2 for o, e in zip(out, expected, strict=True))
        grouped_gemm(problems, add=True)
        assert all(relative_error(o, 2 * e) < 1e-2 for o, e in zip(out, expected, strict=True))


@pytest.mark.gpu
def test_grouped_gemm_full_size() -> None:
    """One launch for the shrinks of q, k and v of several adapters."""
    x = [torch.randn(m, 4096, device=DEVICE).to(torch.bfloat16) for m in (1, 7, 64) for _ in range(3)]
    w = [torch.randn(r, 4096, device=DEVICE).to(torch.bfloat16) for r in (8, 16, 64) for _ in range(3)]
    out = [
        torch.full((len(a), len(b)), float("nan"), device=DEVICE, dtype=torch.bfloat16)
        for a, b in zip(x, w, strict=True)
    ]
    grouped_gemm(problem_list(x, w, out))
    expected = reference_grouped_gemm(list(zip(x, w, strict=True)))
    assert all(relative_error(o, e) < 1e-2 for o, e in zip(out, expected, strict=True))


def sharded_sum(x, a, b, y, mapping, world: int, column: bool) -> torch.Tensor:
    """What `world` ranks compute together, the base layer's output y counted once."""
    outs = [part[0].shape[1] for part in b]
    pieces: list[list[torch.Tensor]] = []
    for rank in range(world):
        cut = shard_column if column else shard_row
        pairs = [[cut(m, n, world, rank) for m, n in zip(pa, pb, strict=True)] for pa, pb in zip(a, b, strict=True)]
        weights = from_tensors(
            [[p[0] for p in part] for part in pairs], [[p[1] for p in part] for part in pairs], [0.5, 2.0]
        )
        step = x.shape[1] // world
        local = x if column else x[:, rank * step : (rank + 1) * step]
        delta = torch.zeros(x.shape[0], sum(weights.out_features), device=DEVICE, dtype=x.dtype)
        mbgmv(local, weights, build_segments(mapping.to(DEVICE), 2), delta)
        pieces.append(list(delta.float().split(list(weights.out_features), 1)))
    if column:
        return y.float() + torch.cat([torch.cat([p[i] for p in pieces], 1) for i in range(len(outs))], 1)
    return y.float() + sum(torch.cat(p, 1) for p in pieces)


@pytest.mark.parametrize("column", [True, False])
@pytest.mark.parametrize("world", [2, 4])
def test_shards_add_up_to_the_whole(world, column) -> None:
    group = make_group((8, 16), 128, (64, 32) if column else (64,))
    weights = from_tensors(group.a, group.b, [0.5, 2.0])
    mapping = with_base(popularity("uniform", 6, 2))
    x = torch.randn(6, 128, device=DEVICE).to(torch.bfloat16)
    y = torch.randn(6, sum(weights.out_features), device=DEVICE).to(torch.bfloat16)
    whole = reference_lora(x, weights, mapping, y)
    assert relative_error(sharded_sum(x, group.a, group.b, y, mapping, world, column), whole) < 1e-2


def test_rank_split_and_output_split_shards() -> None:
    a, b = torch.randn(8, 32), torch.randn(8, 64)
    assert torch.equal(torch.cat([shard_column(a, b, 2, i, split_a=True)[0] for i in range(2)], 0), a)
    assert torch.equal(torch.cat([shard_row(a, b, 4, i, split_b=True)[1] for i in range(4)], 1), b)
    with pytest.raises(ValueError, match="not a multiple of 3"):
        shard_row(a, b, 3, 0)
    with pytest.raises(ValueError, match="rank: 2"):
        shard_row(a, b, 2, 2)


def test_tuned_tables_are_well_formed_and_chosen_from() -> None:
    for path in TABLES.glob("*.json"):
        body = json.loads(path.read_text())
        assert body["command"].startswith("python -m simlora.kernels.tune")
        entries = table(body["gpu"])
        assert entries and all(isinstance(s, Shape) and isinstance(t, Tile) for s, t in entries)
        shape, tile = entries[0]
        assert choose(shape, body["gpu"]) == tile
        for tokens, slots, rank_pad, rows in rows_table(body["gpu"]):
            assert choose_rows(tokens, slots, rank_pad, body["gpu"]) == rows and rows in (1, 8, 16, 32, 64)
    assert choose_rows(32, 8, 16, "an unknown GPU") == 16
    assert choose(Shape("shrink", "decode", 4096, 1, 16, 4, 4), "an unknown GPU").block == 256


@pytest.mark.gpu
def test_segments_in_a_graph() -> None:
    mapping = popularity("zipf", 256, 32).to(DEVICE)
    expected = build_segments(mapping, 32)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = build_segments(mapping, 32)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(found.tiles, expected.tiles) and torch.equal(found.order, expected.order)
    assert make_group((8,), *LLAMA["o"]).weights.slots == 1
