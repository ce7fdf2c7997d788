"""mbgmv, mbgmm, sgmv, bgmv, padded and apply_lora against float32, for every popularity, token count, dtype and
rank."""

from __future__ import annotations

import pytest
import torch
from kernel_cases import (
    DEVICE,
    LLAMA,
    POPULARITIES,
    SMALL,
    TOLERANCE,
    check_adds_delta,
    make_group,
    one_row,
    panel,
    panel_in_turns,
    popularity,
    relative_error,
    with_base,
)
from simlora.kernels import (
    apply_lora,
    bgmv,
    build_segments,
    from_tensors,
    mbgmm,
    mbgmv,
    padded,
    padded_bmm,
    reference_expand,
    reference_lora,
    reference_shrink,
    sgmv_expand,
    sgmv_shrink,
    step_segments,
    summed_partials,
)

MIXED = (8, 16, 32, 64)
# Scratch columns beyond an adapter's rank are never written, loaded with the others, and dropped.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
FULL_SIZE = (
    (mbgmv, 16, 1),
    (mbgmv, 16, 100),
    (mbgmm, 64, 600),
    (bgmv, 1, 9),
    (one_row, 1, 70),
    (mbgmv, 8, 90),
    (panel, 16, 40),
    (panel_in_turns, 16, 200),
)
KERNELS = ((panel, 8), (mbgmm, 32), (mbgmm, 64), (one_row, 1), (panel_in_turns, 16), (panel, 16), (panel_in_turns, 8))


@pytest.mark.parametrize("kind", POPULARITIES)
@pytest.mark.parametrize(("kernel", "rows"), KERNELS)
def test_popularity_with_mixed_ranks_and_base_tokens(kernel, rows, kind) -> None:
    mapping = with_base(popularity(kind, 48, len(MIXED)))
    check_adds_delta(kernel, make_group(MIXED, *SMALL), mapping, rows)


@pytest.mark.parametrize("tokens", [0, 1, 2, 3, 7, 64])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("kernel", "rows"), KERNELS[:2])
def test_token_counts_and_dtypes(kernel, rows, dtype, tokens) -> None:
    check_adds_delta(kernel, make_group(MIXED, *SMALL, dtype=dtype), popularity("uniform", tokens, len(MIXED)), rows)


@pytest.mark.parametrize("ranks", [(1, 3), (12, 0, 24), (100, 5), (256, 1)])
@pytest.mark.parametrize(("kernel", "rows"), (*KERNELS[:2], KERNELS[4]))
def test_ranks_that_are_no_power_of_two(kernel, rows, ranks) -> None:
    check_adds_delta(kernel, make_group(ranks, 96, (80,)), popularity("distinct", 5, len(ranks)), rows)


@pytest.mark.parametrize(("width", "outs"), [(512, (512,)), (200, (136, 72)), (100, (52,)), (37, (3,))])
@pytest.mark.parametrize(("kernel", "rows"), (*KERNELS[:2], KERNELS[3]))
def test_widths(kernel, rows, width, outs) -> None:
    check_adds_delta(kernel, make_group((16, 8), width, outs), with_base(popularity("uniform", 20, 2)), rows)


def test_only_base_tokens_write_nothing() -> None:
    for kernel, rows in KERNELS:
        check_adds_delta(kernel, make_group(MIXED, *SMALL), torch.full((5,), -1, dtype=torch.int32), rows)


@pytest.mark.parametrize("kind", ["identical", "distinct", "zipf"])
def test_bgmv(kind) -> None:
    check_adds_delta(bgmv, make_group(MIXED, *SMALL), with_base(popularity(kind, 9, len(MIXED))), 1)


@pytest.mark.parametrize("tokens", [3, 64])
def test_apply_lora_chooses_by_tile_height(tokens) -> None:
    group = make_group(MIXED, *SMALL)
    mapping = with_base(popularity("zipf", tokens, len(MIXED)))
    assert step_segments(mapping, len(MIXED)).rows == 16
    for rows in (16, 64):
        check_adds_delta(apply_lora, group, mapping, rows)


@pytest.mark.parametrize("rows", [1, 16, 64])
@pytest.mark.parametrize("kind", ["identical", "skewed"])
def test_sgmv_shrink_and_expand(kind, rows) -> None:
    group = make_group((16, 16, 16), *SMALL)
    weights, mapping = group.weights, with_base(popularity(kind, 12, 3))
    x = torch.randn(12, weights.in_features, device=DEVICE).to(weights.dtype)
    segments = build_segments(mapping.to(DEVICE), 3, rows)
    poisoned = torch.full_like(sgmv_shrink(x, weights, segments), float("nan"))
    h = sgmv_shrink(x, weights, segments, poisoned)
    v = reference_shrink(x, weights, mapping)
    has = (mapping >= 0).to(DEVICE)
    assert relative_error(summed_partials(h, weights, segments.order)[has], v[has]) < 1e-5
    y = torch.randn(12, sum(weights.out_features), device=DEVICE).to(weights.dtype)
    expected = reference_expand(v, weights, mapping, y)
    assert relative_error(sgmv_expand(h, weights, segments, y), expected) < TOLERANCE[weights.dtype]


@pytest.mark.parametrize("tokens", [7, 130])
def test_padded_baselines(tokens) -> None:
    """vLLM's algorithm and gathered bmm: storage at the largest rank, zero beyond an adapter's own."""
    ranks, width, outs = (8, 16), 64, (48, 32)
    a = [torch.zeros(2, 16, width, device=DEVICE, dtype=torch.bfloat16) for _ in outs]
    b = [torch.zeros(2, 16, out, device=DEVICE, dtype=torch.bfloat16) for out in outs]
    for slot, rank in enumerate(ranks):
        for part in (*a, *b):
            part[slot, :rank].normal_(0, 0.1)
    weights = from_tensors([list(p.unbind(0)) for p in a], [list(p.unbind(0)) for p in b], [0.5, 2.0], ranks)
    mapping = with_base(popularity("uniform", tokens, 2))
    x = torch.randn(tokens, width, device=DEVICE).to(torch.bfloat16)
    y = torch.randn(tokens, sum(outs), device=DEVICE).to(torch.bfloat16)
    expected = reference_lora(x, weights, mapping, y)
    assert relative_error(padded(x, weights, build_segments(mapping.to(DEVICE), 2), y.clone()), expected) < 1e-2
    gathered = padded_bmm(x, a, b, mapping.to(DEVICE), weights.scaling, 16, y.clone())
    assert relative_error(gathered, expected) < 1e-2


@pytest.mark.gpu
@pytest.mark.parametrize("name", sorted(LLAMA))
@pytest.mark.parametrize("ranks", [(16,) * 16, (8, 16, 32, 64) * 4])
def test_full_size(name, ranks) -> None:
    group = make_group(ranks, *LLAMA[name])
    for kind in POPULARITIES:
        for kernel, rows, tokens in FULL_SIZE:
            check_adds_delta(kernel, group, with_base(popularity(kind, tokens, len(ranks))), rows)


@pytest.mark.gpu
@pytest.mark.parametrize("ranks", [(1, 3, 24, 100), (256, 12, 0, 7)])
def test_full_size_odd_ranks(ranks) -> None:
    group = make_group(ranks, *LLAMA["qkv"], dtype=torch.float16)
    for kernel, rows, tokens in ((one_row, 1, 33), (panel, 8, 33), (panel_in_turns, 16, 33), (mbgmm, 64, 300)):
        check_adds_delta(kernel, group, with_base(popularity("uniform", tokens, len(ranks))), rows)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 32, 700])
def test_dependent_launch_in_a_graph_changes_no_bit(tokens) -> None:
    """Layers that share scratch and output, replayed: with early starts the result must equal the one without."""
    layers = [make_group((16,) * 8, *LLAMA["o"], seed=i).weights for i in range(6)]
    segments = step_segments(popularity("uniform", tokens, 8).to(DEVICE), 8)
    x = torch.randn(tokens, 4096, device=DEVICE).to(torch.bfloat16)
    results = []
    for pdl in (False, True):
        inputs, y = x.clone(), torch.zeros_like(x)

        def run(inputs=inputs, y=y, pdl=pdl) -> None:
            y.zero_()
            for weights in layers:
                apply_lora(inputs, weights, segments, y, pdl=pdl)
                inputs.copy_(y).add_(x)

        run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        for _ in range(3):
            inputs.copy_(x)
            graph.replay()
            torch.cuda.synchronize()
            results.append(y.clone())
    assert all(torch.equal(r, results[0]) for r in results)
