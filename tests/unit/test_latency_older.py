"""Steps of vLLM 0.8.5: piecewise graphs, host and GPU alternate, LoRA kernels in every graph, costs of its Python."""

from __future__ import annotations

import pytest
from support.latency_cases import decode, make_latency, mixed

from simlora.engines.vllm.cuda_graphs import capture_sizes
from simlora.errors import ConfigError
from simlora.latency.collectives import HOST_HOPS, HOST_LATENCY_FACTOR, Collectives
from simlora.latency.overlap import alternating
from simlora.latency.shapes import default_penalties
from simlora.latency.step import StepTiming
from simlora.latency.step_latency import StepLatency
from simlora.scenario.engines.vllm_versions import V0_8_5, V0_20, vllm_version
from simlora.scenario.model import builtin_model

OLD = {"version": "0.8.5", "gpu": "h100-64gb"}


def older(model: str = "llama-3.1-8b", **flags: object) -> StepLatency:
    return make_latency(model, OLD["gpu"], version=OLD["version"], **flags)


def total_s(timing: StepTiming) -> float:
    return timing.host_s + timing.load_s + timing.sync_s + timing.gpu_s


def test_rules_by_version() -> None:
    assert vllm_version("0.8.5") is V0_8_5
    assert vllm_version("0.20") is V0_20 and vllm_version("0.20.2") is V0_20


@pytest.mark.parametrize("version", ["0.8", "0.8.4", "0.9.0", "0.21", "1.0", "latest", ""])
def test_an_unknown_version_is_refused(version: str) -> None:
    with pytest.raises(ConfigError, match=r'engine\.version: .*supported vLLM versions: "0\.20", "0\.8\.5"'):
        vllm_version(version)
    with pytest.raises(ConfigError):
        make_latency(version=version)


def test_captured_sizes_do_not_follow_max_num_seqs() -> None:
    sizes = capture_sizes(V0_8_5.graphs, 8, 2048)
    assert sizes[-1] == 512 and 264 in sizes and 504 in sizes
    assert capture_sizes(V0_20.graphs, 8, 2048)[-1] == 16


def test_host_and_gpu_alternate() -> None:
    timing = alternating((2e-3, 1.5e-3, 8e-3), 0.0, (9e-3, 1e-3, 0.0, 0.0), 1e-6, 100, ())
    assert total_s(timing) == pytest.approx(2e-3 + 10e-3) and not timing.launch_bound
    assert timing.slope_s == 1e-6 and timing.repeat_host_s == 1.5e-3 and timing.valid_steps == 100


def test_launching_hides_the_growth_of_a_small_batch() -> None:
    timing = alternating((2e-3, 1.5e-3, 8e-3), 0.0, (4e-3, 1e-3, 0.0, 0.0), 1e-4, 100, ())
    assert total_s(timing) == pytest.approx(2e-3 + 8e-3)
    assert timing.slope_s == 0.0 and timing.valid_steps == 1 + 30  # 3 ms to grow by 0.1 ms a step


def test_a_decode_step_is_priced_for_many_repetitions() -> None:
    timing = older().price(decode(64, 8))
    assert timing.valid_steps == 100 and timing.slope_s > 0.0 and timing.sync_s == 0.0


def test_lora_kernels_run_without_adapters_in_graphs_only() -> None:
    latency = older(max_loras=64, max_cpu_loras=64)
    assert latency.price(decode(8)).lora_s > 0.0
    assert latency.price(decode(600)).lora_s == 0.0  # no graph: skipped on the host
    assert make_latency(max_loras=64).price(decode(8)).lora_s == 0.0
    assert older(enable_lora=False).price(decode(8)).lora_s == 0.0


def test_more_slots_cost_more_though_nobody_uses_them() -> None:
    few, many = (older(max_loras=slots).price(decode(32, 4)).lora_s for slots in (8, 128))
    assert many > few


def test_the_host_cache_is_listed_for_every_adapter_of_the_step() -> None:
    small, large = (older(max_loras=64, max_cpu_loras=size) for size in (64, 384))
    grown = [total_s(large.price(decode(64, n))) - total_s(small.price(decode(64, n))) for n in (8, 64)]
    assert grown[1] == pytest.approx(8 * grown[0]) and grown[0] > 0.0


def test_skipped_requests_cost_host_time() -> None:
    latency = older()
    plan = decode(32, 8)
    long = plan._replace(skipped=10_000)
    assert 1e-3 < total_s(latency.price(long)) - total_s(latency.price(plan)) < 4e-3


def test_a_changed_batch_pays_by_tokens_and_slots() -> None:
    def change_s(slots: int, prompt: int) -> float:
        latency = older(max_loras=slots)
        return latency.price(mixed(8, prompt, 4)).host_s - latency.price(decode(9, 4)).host_s

    assert change_s(128, 400) - change_s(128, 200) > 2 * (change_s(8, 400) - change_s(8, 200)) > 0.0


def test_qwen_pays_for_its_default_penalty() -> None:
    qwen, llama = builtin_model("qwen2.5-7b"), builtin_model("llama-3.1-8b")
    assert qwen is not None and llama is not None
    assert default_penalties(qwen) and not default_penalties(llama)
    old = older("qwen2.5-7b", enable_lora=False).operators
    assert old.penalties and old.head_s(400) > 1.5 * old.head_s(8)
    assert not make_latency("qwen2.5-7b").operators.penalties


def test_loads_take_the_published_time() -> None:
    latency = older(max_lora_rank=32)
    for rank, measured_s in ((8, 8.08e-3), (16, 7.87e-3), (32, 6.37e-3)):
        assert latency.load_s(rank, "host") == pytest.approx(measured_s, rel=0.065)


def test_without_nvlink_collectives_go_through_the_host() -> None:
    model = builtin_model("llama-3.1-8b")
    assert model is not None
    parameters = make_latency().calibration.terms.collectives.parameters
    plain = Collectives(parameters, model, 2, 64e9, False, 16)
    hosted = Collectives(parameters, model, 2, 64e9, False, 16, through_host=True)
    assert hosted.step_s(1, 0) == pytest.approx(HOST_LATENCY_FACTOR * plain.step_s(1, 0), rel=0.05)
    assert hosted.step_s(100_000, 0) == pytest.approx(HOST_HOPS * plain.step_s(100_000, 0), rel=0.05)
    assert make_latency(gpu="rtx-pro-6000", tensor_parallel_size=2).collectives.through_host
    assert not make_latency(gpu="h100-80gb", tensor_parallel_size=2).collectives.through_host
    assert not make_latency(gpu="gh200", tensor_parallel_size=2).collectives.through_host
