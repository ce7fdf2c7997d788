"""LoRA kernel families: against what was measured, and by what tells them apart."""

from __future__ import annotations

import gzip
import json
from typing import Any

import numpy as np
import pytest
from support.latency_cases import AnyEngine, Loading, decodes, make_any, prompts, step_s

from simlora.latency.calibration import Calibration
from simlora.latency.families.choice import Layout, make_family
from simlora.latency.families.work import LoraWork
from simlora.latency.fit_families import SAMPLED, sample_family, sample_work
from simlora.latency.graph_sets import lorax_graph, sglang_sizes
from simlora.latency.profiles import lorax_padded_rank
from simlora.latency.step import AdapterMix
from simlora.latency.store import CALIBRATION_FOLDER, choose_calibration, load_calibration
from simlora.scenario.gpu_catalog import builtin_gpu
from simlora.scenario.lora_modules import ALL_LINEAR
from simlora.scenario.model_catalog import builtin_model

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
    lines = gzip.decompress(SAMPLES.read_bytes()).decode().splitlines()
    rows = [json.loads(line) for line in lines]
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
    for gpu in ("h200-141gb", "h100-80gb", "a10g"):
        marks = make_any("slora", gpu=gpu).price(decodes(8, 2)).extrapolated
        assert {"host", "lora_kernels", "copies"} <= set(marks)


def test_terms_that_a_calibration_leaves_out_are_borrowed() -> None:
    gpu = builtin_gpu("h100-80gb")
    assert gpu is not None
    older = AnyEngine(version="0.8.5", kernels="simlora")
    chosen = choose_calibration(gpu, older)
    assert chosen.id == "nvidia-h100" and chosen.terms.lora_families is not None
    assert any("from nvidia-h200" in note for note in chosen.notes) and "lora_kernels" in chosen.extrapolated
    plain = choose_calibration(gpu, AnyEngine(version="0.8.5"))
    assert plain.terms.lora_families is None
    assert choose_calibration(gpu, AnyEngine(kind="slora", version="published", kernels="mbgmv")).id == "nvidia-h200"


def test_the_file_round_trips() -> None:
    assert Calibration.model_validate(CALIBRATION.model_dump(mode="json", by_alias=True)) == CALIBRATION


def test_lorax_graphs_are_for_one_rank() -> None:
    assert [lorax_padded_rank(rank) for rank in (0, 1, 8, 9, 16, 17, 64)] == [0, 8, 8, 16, 16, 32, 64]
    assert lorax_padded_rank(8, tp=4) == 32
    sizes = [lorax_graph(decodes(n, 1, 16)) for n in (3, 5, 33, 128)]
    assert [graph.tokens for graph in sizes if graph] == [3, 8, 64, 128]
    assert [graph.at_start for graph in sizes if graph] == [True, True, False, False]
    assert lorax_graph(decodes(129, 1)) is None and lorax_graph(decodes(8, 1, 128)) is None
    assert lorax_graph(decodes(8, 2, mix=AdapterMix(24, 96, 16, 2))) is None
    assert lorax_graph(prompts(1, 16, 1)) is None and lorax_graph(decodes(8)) is not None
    latency = make_any("lorax")
    assert latency.lazy_capture_s(decodes(40, 1)) > step_s(latency, decodes(40, 1))
    assert latency.lazy_capture_s(decodes(30, 1)) == 0.0 == make_any("slora").lazy_capture_s(decodes(40, 1))


def test_sglang_captures_batches() -> None:
    assert sglang_sizes(24) == (1, 2, 4, 8, 12, 16, 24)
    assert {160, 256} <= set(sglang_sizes(256)) and max(sglang_sizes(512)) == 512


def test_pageable_copies_are_slower() -> None:
    pinned, pageable = make_any("vllm"), make_any("vllm", adapter_loading=Loading(pinned=False))
    assert pageable.load_s(64, "host") > 2.0 * pinned.load_s(64, "host")
    assert pinned.price(decodes(8, 4)) == pageable.price(decodes(8, 4))
