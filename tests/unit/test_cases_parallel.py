"""Published cases about parallelism, LoRA's price and eager mode. Numbers are those of the sources; every test states a
factor band. None of these setups was measured for the calibrations, so the results must be marked as extrapolated."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1]))

from support.latency_cases import decodes, make_any, prompts, step_s

from simlora.engines.epoch import plan_ahead
from simlora.latency.engine_latency import EngineLatency
from simlora.results.summary import summarize
from simlora.scenario.load import scenario_from_dict
from simlora.sim.build import build_inputs
from simlora.sim.simulate import simulate

CHAT = {
    "arrivals": {"kind": "poisson", "rate_rps": 1000},
    "prompt_tokens": {"kind": "lognormal", "median": 110, "sigma": 1.1, "max": 1000},
    "output_tokens": {"kind": "lognormal", "median": 140, "sigma": 1.0, "max": 1000},
    "duration_s": 1.0,
}
"""A thousand chat requests at once, with lengths like ShareGPT's (means of about 200 tokens each)."""


def chat_on_a100(max_loras: int) -> dict[str, Any]:
    """Summary of Llama-2-7B with one rank-8 adapter; max_loras 0: without LoRA."""
    engine: dict[str, Any] = {"enable_lora": max_loras > 0, "max_num_seqs": 256}
    item: dict[str, Any] = {"model": "llama-2-7b", "gpu": "a100-80gb", "engine": engine, "workload": CHAT}
    if max_loras:
        engine |= {"max_loras": max_loras, "max_lora_rank": 8}
        item["adapters"] = {"count": 1, "ranks": 8}
    return summarize(simulate(build_inputs(scenario_from_dict(item))))


def test_c12_one_adapter_costs_throughput_whatever_max_loras() -> None:
    """vLLM PR 11267 and 11613, A100: 11.45 requests/s without LoRA, 7.60 and 7.61 with max_loras 1 and 4.

    That was the engine of December 2024, which is not modelled, with its own LoRA kernels: a loss of 34 %, here 13 %.
    What must hold: throughputs within a factor of 1.4 and 1.7, a loss, and no dependence on unused slots.
    """
    base, one, four = (chat_on_a100(max_loras) for max_loras in (0, 1, 4))
    rates = [summary["request_throughput_rps"] for summary in (base, one, four)]
    assert 1 / 1.4 < rates[0] / 11.45 < 1.4
    assert 1 / 1.7 < rates[1] / 7.60 < 1.7
    assert 0.5 < rates[1] / rates[0] < 0.95
    assert rates[2] / rates[1] == pytest.approx(7.61 / 7.60, rel=0.02)
    assert "operators" in one["calibration"]["extrapolated"]


def test_c15_tensor_parallelism_pays_less_over_pcie_and_lora_costs_no_less() -> None:
    """SGLang PR 4274, RTX 3090s without a link, Llama-7B: 793, 783, 765 tokens/s at TP 1, 2, 4, and 800, 725, 717 with
    LoRA: TP gains nothing there, and LoRA costs nothing at TP 1 and 6 to 7 % beyond.

    vLLM's side: the gain of TP is smaller than over NVLink, prompts gain nothing on the fastest card without a link,
    and LoRA's share of a step does not shrink with TP (A of column layers is on every GPU). A step's gain over PCIe
    is taken from measurements over NVLink, scaled, and comes out too high: 1.4 at TP 2 where none was seen.
    """
    steps = {
        (gpu, lora): [_decode_s(gpu, tp, lora) for tp in (1, 2, 4)]
        for gpu in ("rtx-3090", "a100-80gb")
        for lora in (False, True)
    }
    bare, adapted = steps["rtx-3090", False], steps["rtx-3090", True]
    shares = [with_s / without_s - 1.0 for with_s, without_s in zip(adapted, bare, strict=True)]
    assert all(0.0 < share < 2 * 0.07 for share in shares) and shares == sorted(shares)
    assert 1 / 2.2 < (bare[0] / bare[2]) / (765 / 793) < 2.2
    collectives = {
        gpu: make_any("vllm", gpu=gpu, tensor_parallel_size=2).price(decodes(16, 1)).collective_s
        for gpu in ("rtx-3090", "a100-80gb")
    }
    assert collectives["rtx-3090"] > 4 * collectives["a100-80gb"]
    pcie = [_prompt_s("rtx-pro-6000", tp) for tp in (1, 2, 4)]
    assert pcie == sorted(pcie)
    two = make_any("vllm", gpu="rtx-3090", tensor_parallel_size=4).price(decodes(16, 1))
    assert {"collectives", "operators"} <= set(two.extrapolated)


def _decode_s(gpu: str, tp: int, lora: bool) -> float:
    latency = make_any("vllm", gpu=gpu, tensor_parallel_size=tp, enable_lora=lora)
    return step_s(latency, decodes(16, int(lora)))


def _prompt_s(gpu: str, tp: int) -> float:
    return step_s(make_any("vllm", gpu=gpu, tensor_parallel_size=tp, enable_lora=False), prompts(4, 512, 0))


@pytest.mark.parametrize(
    ("model", "gpu", "tp"),
    [("qwen2.5-72b", "a100-80gb", 4), ("llama-2-7b", "a100-80gb", 1), ("qwen2.5-7b", "h200-141gb", 1)],
)
def test_c39_lora_at_batch_one_doubles_eager_steps_and_barely_shows_in_graphs(model: str, gpu: str, tp: int) -> None:
    """vLLM issue 13204 (Qwen2.5-72B, eager: 17.6 to 6.5 tokens/s) and others: 2 to 2.7 eager, 1.1 to 1.4 in graphs."""
    eager, graph = (_penalty(model, gpu, tp, mode) for mode in (True, False))
    assert 2.0 / 1.25 < eager < 2.7 * 1.25
    assert 1.1 / 1.1 < graph < 1.4 * 1.1
    marked = make_any("vllm", model, gpu, tensor_parallel_size=tp).price(decodes(1, 1)).extrapolated
    assert "operators" in marked


def _penalty(model: str, gpu: str, tp: int, eager: bool) -> float:
    """Gap between tokens of one request with an adapter over that without LoRA."""
    flags = {"tensor_parallel_size": tp, "enforce_eager": eager, "max_loras": 1}
    on, off = (make_any("vllm", model, gpu, **flags, enable_lora=lora) for lora in (True, False))
    return _gap_s(on, 1) / _gap_s(off, 0)


def _gap_s(latency: EngineLatency, adapters: int) -> float:
    """Of a batch that does not change."""
    t = latency.price(decodes(1, adapters)._replace(batch_changed=False))
    step = t.host_s, t.load_s, t.gpu_s, t.slope_s, t.launch_bound, t.tail_s, t.valid_steps, t.sync_s, t.repeat_host_s
    *_, left_s = plan_ahead(0.0, *step)
    gap_s, *_ = plan_ahead(left_s, *step)
    return gap_s


def test_c32_every_tensor_parallel_worker_reads_the_file() -> None:
    """vLLM issue 6072: loading with TP is very slow. Four workers read one adapter from one disk four times."""
    loads = [make_any("vllm", tensor_parallel_size=tp, disk_bytes_per_s=2e8).load_s(16, "disk") for tp in (1, 2, 4)]
    assert loads[1] > 1.6 * loads[0] and loads[2] > 3.0 * loads[0]
