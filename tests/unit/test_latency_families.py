"""LoRA kernel families: against what was measured, and by what tells them apart."""

from __future__ import annotations

import gzip
import json
from typing import Any

import numpy as np
import pytest
from fit_lora_families import PEERS, peer_rows
from simlora.calibrate.fitting.families import SAMPLED, sample_family, sample_work
from support.latency_cases import AnyEngine, Loading, calibrated, decodes, make_any, prompts, step_s

from simlora.engines.lorax.profile import decode_graph, padded_rank
from simlora.engines.sglang.profile import capture_batches
from simlora.latency.calibration import Calibration
from simlora.latency.families.choice import Layout, make_family
from simlora.latency.families.kernels import Copied, adapter_runs
from simlora.latency.families.work import Cost, LoraWork
from simlora.latency.scaling import scale_host
from simlora.latency.step import AdapterMix
from simlora.latency.store import CALIBRATION_FOLDER, load_calibration
from simlora.scenario.gpu import builtin_gpu
from simlora.scenario.lora_modules import ALL_LINEAR, ATTENTION
from simlora.scenario.model import builtin_model

SAMPLES = CALIBRATION_FOLDER / "samples" / "nvidia-h200" / "samples.jsonl.gz"
MODELS = {name: spec for name in ("llama-3.1-8b", "llama-3.1-70b") if (spec := builtin_model(name)) is not None}
FAMILIES = ("sgmv", "bgmv", "mbgmv", "mbgmm", "csgmv", "simlora", "padded-bmm", "loop", "grouped-gemm")
CALIBRATION = load_calibration("nvidia-h200")


def seconds(family: str, tokens: int, adapters: int, rank: int = 16, mix: AdapterMix | None = None) -> float:
    layout = Layout(MODELS["llama-3.1-8b"], 1, ALL_LINEAR)
    found = mix or AdapterMix(adapters * rank, tokens * rank, rank, 1)
    work = LoraWork(tokens, tokens, adapters, found, tokens, tokens)
    return make_family(family, CALIBRATION, layout).kernels.step_s(work)


def measured_rows(family: str) -> list[dict[str, Any]]:
    """What the family was fitted to: this project's kernels as benchmarked last, others as the campaign found them."""
    if family == "simlora":
        rows = list(peer_rows(json.loads(PEERS.read_text())["rows"]))
    else:
        rows = [json.loads(line) for line in gzip.decompress(SAMPLES.read_bytes()).decode().splitlines()]
    return [row for row in rows if row["op"] == "lora_step" and row["family"] == SAMPLED[family]]


@pytest.mark.parametrize("family", ["csgmv", "simlora"])
def test_measured_steps_are_met_within_the_stated_error(family: str) -> None:
    families = CALIBRATION.terms.lora_families
    assert families is not None
    term, rows = families.parameters[family], measured_rows(family)
    assert term.basis == "measured" and term.fit_error is not None and term.held_out_error is not None
    priced = [sample_family(row, family, MODELS, CALIBRATION).step_s(sample_work(row)) for row in rows]
    errors = np.array(priced) / np.array([row["p50"] for row in rows]) - 1.0
    assert float(np.sqrt(np.mean(errors**2))) <= 1.15 * max(term.fit_error, term.held_out_error)


@pytest.mark.parametrize(
    ("family", "tokens", "adapters", "measured_s", "most"),
    [
        ("padded-bmm", 32, 32, 0.00809, 0.2),
        ("padded-bmm", 256, 32, 0.02413, 0.2),
        ("loop", 8, 8, 0.02386, 0.2),
        ("loop", 2048, 1, 0.03268, 0.2),
        ("bgmv", 256, 1, 0.00320, 2.5),
        ("sgmv", 128, 128, 0.00359, 2.5),
    ],
)
def test_single_steps(family: str, tokens: int, adapters: int, measured_s: float, most: float) -> None:
    """benchmarks/results on an H200; the last two are this project's kernels, whose kind Punica's are of."""
    assert abs(seconds(family, tokens, adapters) / measured_s - 1.0) < most


@pytest.mark.parametrize("family", ["sgmv", "mbgmm"])
def test_segments_reuse_weights(family: str) -> None:
    for rank in (16, 64):
        assert seconds(family, 128, 1, rank) <= 0.5 * seconds(family, 128, 128, rank)


@pytest.mark.parametrize("family", ["bgmv", "mbgmv"])
def test_one_row_kernels_pay_by_token(family: str) -> None:
    few, many, segmented = seconds(family, 32, 1, 64), seconds(family, 256, 1, 64), seconds("sgmv", 256, 1, 64)
    assert many > 2.0 * few and many > segmented


def test_padded_products_pay_for_the_largest_rank() -> None:
    mixed = AdapterMix(rank_sum=7 * 8 + 64, rank_tokens=31 * 8 + 64, max_rank=64, distinct_ranks=2)
    assert seconds("padded-bmm", 32, 8, mix=mixed) == seconds("padded-bmm", 32, 8, 64)
    assert seconds("mbgmv", 32, 8, mix=mixed) < 0.8 * seconds("mbgmv", 32, 8, 64)
    assert seconds("padded-bmm", 32, 8, mix=mixed) >= seconds("mbgmv", 32, 8, mix=mixed)


def test_runs_of_neighbours_with_one_adapter() -> None:
    """Their mean over random orders; none where there is nothing to copy."""
    random = np.random.default_rng(5)
    for requests, adapters in ((1, 1), (12, 1), (12, 3), (12, 12), (30, 10)):
        order = [random.permutation(np.arange(requests) % adapters) for _ in range(4000)]
        mean = float(np.mean([1 + np.count_nonzero(np.diff(row)) for row in order]))
        assert adapter_runs(requests, adapters) == pytest.approx(mean, rel=0.01)
    assert adapter_runs(0, 0) == adapter_runs(4, 0) == 0.0


def apart(work: LoraWork) -> Cost:
    """q, k, v and o of a Llama whose adapters lie apart, as S-LoRA's padded baseline multiplies them."""
    kernels = make_family(
        "padded-bmm", CALIBRATION, Layout(MODELS["llama-3.1-8b"], 1, ATTENTION, stacked=False)
    ).kernels
    assert isinstance(kernels, Copied)
    (group,) = kernels.groups
    assert kernels.launches(work) == kernels.cost(group, work).products + kernels.cost(group, work).fills
    assert kernels.views(work) == kernels.cost(group, work).views
    return kernels.cost(group, work)


def test_adapters_apart_are_copied_run_by_run() -> None:
    """Counted in the published code, for each run and each of the four projections. Decodes: A, B and half of the
    inputs copied, the result scaled and added, by 6 + 2 + 5 views; prompts are multiplied run by run."""
    one_rank = LoraWork(20, 20, 20, AdapterMix(160, 160, 8, 1), 20, 20)
    cost, projections = apart(one_rank), 4 * 32
    assert cost.products == 2 * projections and cost.fills == 4.5 * 20 * projections
    assert cost.views == (6 + 2 + 5) * 20 * projections
    mixed = one_rank._replace(mix=AdapterMix(5 * (8 + 16 + 32 + 64), 0, 64, 4))
    assert apart(mixed).views == (6 + 2 * 3 / 4 + 2 + 5) * 20 * projections
    assert apart(mixed).weight_bytes == pytest.approx(cost.weight_bytes * (64 + 30) / (8 + 8))
    single = apart(one_rank._replace(adapters=1, mix=AdapterMix(8, 160, 8, 1)))
    assert single.fills == 4.5 * projections and single.weight_bytes == cost.weight_bytes / 20
    prompts = apart(one_rank._replace(tokens=2000, lora_tokens=2000, longest=100))
    assert prompts.products == 2 * 20 * projections and prompts.fills == 4 * 20 * projections
    assert prompts.views == (6 + 13) * 20 * projections


def test_views_take_host_time_alone() -> None:
    launches = CALIBRATION.terms.launches
    assert launches is not None and 0.1 < launches.parameters.view_s / launches.parameters.torch_s < 0.5
    latency, plan = make_any("slora", kernels="padded-bmm"), decodes(32, 32)
    parts = latency.parts(plan)
    terms = latency.calibration.terms
    free = terms.launches.model_copy(
        update={"parameters": terms.launches.parameters.model_copy(update={"view_s": 0.0})}
    )
    without = latency.calibration.model_copy(update={"terms": terms.model_copy(update={"launches": free})})
    other = latency.with_calibration(without, latency.step_scale).parts(plan)
    assert other.gpu == parts.gpu and parts.launch_s > 1.2 * other.launch_s
    slower = scale_host(latency.calibration, 2.0).terms.launches
    assert slower is not None and slower.parameters.view_s == 2.0 * launches.parameters.view_s


def test_grouped_gemm_wastes_tiles_most_on_four_blocks() -> None:
    hopper = seconds("grouped-gemm", 32, 32)
    assert hopper > 3.0 * seconds("mbgmm", 32, 32)
    ampere = CALIBRATION.model_copy(update={"gpu": CALIBRATION.gpu.model_copy(update={"architecture": "ampere"})})
    layout = Layout(MODELS["llama-3.1-8b"], 1, ALL_LINEAR)
    work = LoraWork(32, 32, 32, AdapterMix(512, 512, 16, 1), 32, 32)
    assert make_family("grouped-gemm", ampere, layout).kernels.step_s(work) > 5.0 * hopper


def test_a_loop_pays_by_adapter() -> None:
    assert seconds("loop", 8, 8) == pytest.approx(8 * seconds("loop", 1, 1), rel=0.1)


def test_calls_for_each_rank() -> None:
    layout = Layout(MODELS["llama-3.1-8b"], 1, ALL_LINEAR)
    kernels = make_family("bgmv", CALIBRATION, layout, one_rank=True).kernels
    one = LoraWork(8, 8, 2, AdapterMix(48, 192, 32, 1), 8, 8)
    two = one._replace(mix=one.mix._replace(distinct_ranks=2))
    assert kernels.launches(two) == 2 * kernels.launches(one)
    assert kernels.step_s(two) > kernels.step_s(one)


def test_kernels_on_vllm_can_be_asked_for() -> None:
    plan = decodes(32, 32)
    own = make_any("vllm", "llama-3.1-8b", max_loras=32)
    times = {name: make_any("vllm", "llama-3.1-8b", max_loras=32, kernels=name).price(plan).lora_s for name in FAMILIES}
    assert times["simlora"] < 0.2 * own.price(plan).lora_s and times["simlora"] == min(times.values())
    assert times["loop"] == max(times.values())
    unmixed = make_any("vllm", "llama-3.1-8b", max_loras=32, kernels="simlora").price(plan._replace(mix=None))
    assert unmixed.lora_s == times["simlora"]


def test_families_that_nobody_measured_are_marked() -> None:
    plan = decodes(8, 8)
    for name in FAMILIES:
        latency = make_any("vllm", "llama-3.1-8b", kernels=name)
        known = name in ("csgmv", "simlora", "padded-bmm", "loop", "bgmv")
        assert ("lora_kernels" in latency.price(plan).extrapolated) is not known, name
        assert "lora_kernels" not in latency.price(decodes(8)).extrapolated


def test_other_engines_are_marked_whatever_the_gpu() -> None:
    for kind in ("slora", "lorax", "punica", "sglang", "grouped", "sequential", "merged-swap"):
        for gpu in ("h200-141gb", "h100-80gb", "a10g"):
            marks = make_any(kind, gpu=gpu).price(decodes(8, 2)).extrapolated
            assert {"host", "lora_kernels", "copies"} <= set(marks)


def test_terms_that_a_calibration_leaves_out_are_borrowed() -> None:
    gpu = builtin_gpu("h100-80gb")
    assert gpu is not None
    older = AnyEngine(version="0.8.5", kernels="simlora")
    chosen = calibrated(gpu, older)[0]
    assert chosen.id == "nvidia-h100" and chosen.terms.lora_families is not None
    assert any("from nvidia-h200" in note for note in chosen.notes) and "lora_kernels" in chosen.extrapolated
    plain = calibrated(gpu, AnyEngine(version="0.8.5"))[0]
    assert plain.terms.lora_families is None
    assert calibrated(gpu, AnyEngine(kind="slora", version="published", kernels="mbgmv"))[0].id == "nvidia-h200"


def test_the_file_round_trips() -> None:
    assert Calibration.model_validate(CALIBRATION.model_dump(mode="json", by_alias=True)) == CALIBRATION


def test_lorax_graphs_are_for_one_rank() -> None:
    assert [padded_rank(rank) for rank in (0, 1, 8, 9, 16, 17, 64)] == [0, 8, 8, 16, 16, 32, 64]
    assert padded_rank(8, 4) == 32
    sizes = [decode_graph(decodes(n, 1, 16)) for n in (3, 5, 33, 128)]
    assert [graph.tokens for graph in sizes if graph] == [3, 8, 64, 128]
    assert [graph.at_start for graph in sizes if graph] == [True, True, False, False]
    assert decode_graph(decodes(129, 1)) is None and decode_graph(decodes(8, 1, 128)) is None
    assert decode_graph(decodes(8, 2, mix=AdapterMix(24, 96, 16, 2))) is None
    assert decode_graph(prompts(1, 16, 1)) is None and decode_graph(decodes(8)) is not None
    latency = make_any("lorax")
    assert latency.lazy_capture_s(decodes(40, 1)) > step_s(latency, decodes(40, 1))
    assert latency.lazy_capture_s(decodes(30, 1)) == 0.0 == make_any("slora").lazy_capture_s(decodes(40, 1))


def test_sglang_captures_batches() -> None:
    assert capture_batches(24) == (1, 2, 4, 8, 12, 16, 24)
    assert capture_batches(30) == (1, 2, 4, 8, 12, 16, 24, 30) and capture_batches(530)[-2:] == (512, 530)
    few = make_any("sglang", max_running_requests=20)
    assert few.graph_key(decodes(18)) == (20, 0, True) and few.graph_key(decodes(21)) is None
    assert {160, 256} <= set(capture_batches(256)) and max(capture_batches(512)) == 512


def test_pageable_copies_are_slower() -> None:
    pinned, pageable = make_any("vllm"), make_any("vllm", adapter_loading=Loading(pinned=False))
    assert pageable.load_s(64, "host") > 2.0 * pinned.load_s(64, "host")
    assert pinned.price(decodes(8, 4)) == pageable.price(decodes(8, 4))


ALL_MATRICES, FUSED_MATRICES = 32 * 14, 32 * 8
"""A and B of Llama-2-7B: of each projection, and with q, k and v as one and gate and up as one."""


@pytest.mark.parametrize(
    ("kind", "flags", "operations", "crossings", "pinned", "pins"),
    [
        ("slora", {}, 2 * 32, 1, True, 0),
        ("slora", {"artifact": True}, 4 * 32, 2, True, 0),
        ("lorax", {"adapter_loading": Loading(pinned=False)}, 3 * ALL_MATRICES, 1, False, 0),
        ("sglang", {"adapter_loading": Loading(pinned=False)}, FUSED_MATRICES, 1, True, FUSED_MATRICES),
        ("sglang", {"adapter_loading": Loading(overlap=True)}, FUSED_MATRICES, 1, True, 0),
        ("punica", {}, 14, 1, True, 0),
        ("grouped", {}, 14, 1, True, 0),
        ("sequential", {}, 14, 1, True, 0),
        ("merged-swap", {}, 14, 1, True, 0),
    ],
)
def test_copies_of_a_load_are_counted_engine_by_engine(
    kind: str, flags: dict[str, Any], operations: int, crossings: int, pinned: bool, pins: int
) -> None:
    """Copies and small kernels that the host issues for an adapter of the slots' rank; times that the link is crossed;
    whether host copies are pinned, and tensors that are pinned for the load."""
    latency = make_any(kind, **flags)
    launches, recipe = latency.calibration.terms.launches, latency.transfers.recipes[False]
    assert launches is not None
    assert recipe.issue_s == pytest.approx(operations * launches.parameters.torch_s)
    assert (recipe.crossings, recipe.pinned, recipe.pins) == (crossings, pinned, pins)
