"""Settings of the engines other than vLLM: defaults, and what each of them refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simlora.errors import ConfigError
from simlora.scenario.load import scenario_from_dict
from simlora.scenario.root import Scenario
from simlora.sim.build import initial_adapters

KINDS = ("slora", "lorax", "sglang", "punica", "grouped", "sequential", "merged-swap")
SIZED_BY_MEMORY = {"slora": "max_total_token_num", "lorax": "max_batch_total_tokens", "sglang": "max_loaded_loras"}
"""Fields that stay null: what fits, or all. The rest are concrete once loaded."""
MAY_STAY_NULL = {*SIZED_BY_MEMORY.values(), "batch_num_adapters"}
SHARED = (
    "max_loras",
    "max_lora_rank",
    "max_cpu_loras",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "block_size",
)


def scenario(kind: str, model: str = "llama-2-7b", gpu: str = "a10g", **changes: Any) -> Scenario:
    sections = {key: changes.pop(key) for key in ("adapters", "storage") if key in changes}
    data = {"model": model, "gpu": gpu, "engine": {"kind": kind, **changes}, "adapters": {"count": 10}}
    return scenario_from_dict({**data, **sections})


def refused(kind: str, *args: str, **changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        scenario(kind, *args, **changes)
    return str(caught.value).removeprefix("<arguments>: ")


@pytest.mark.parametrize("kind", KINDS)
def test_every_default_is_resolved_and_survives_a_round_trip(kind: str) -> None:
    given = scenario(kind)
    values = given.engine.model_dump()
    assert {key for key, value in values.items() if value is None} <= MAY_STAY_NULL
    assert None not in values["adapter_loading"].values()
    assert all(isinstance(getattr(given.engine, name), int) for name in SHARED)
    assert 0 < given.engine.gpu_memory_utilization <= 1
    again = scenario(**given.engine.model_dump(mode="json"))
    assert again.engine == given.engine


@pytest.mark.parametrize("kind", KINDS)
def test_a_scenario_without_adapters_is_served_by_all(kind: str) -> None:
    assert scenario(kind, enable_lora=False, adapters={"count": 0}).adapters.count == 0


COMMON = [
    ({"max_model_len": 5000}, "engine.max_model_len: 5000: llama-2-7b takes at most 4096 tokens"),
    ({"adapters": {"count": 2, "target_modules": ["q_proj", "nonsense"]}}, "adapters.target_modules"),
    ({"adapter_loading": {"overlap": False, "prefetch": True}}, "engine.adapter_loading.prefetch: True: needs engine."),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("changes", "message"), COMMON)
def test_common_rules(kind: str, changes: dict[str, Any], message: str) -> None:
    assert refused(kind, **changes).startswith(message)


@pytest.mark.parametrize("kind", ["slora", "lorax", "punica", "merged-swap"])
def test_engines_that_cannot_pin_refuse_to(kind: str) -> None:
    message = refused(kind, adapters={"count": 4, "pinned": [1], "ranks": 16})
    assert message == f"adapters.pinned: [1]: must be empty: {kind} cannot pin adapters"


@pytest.mark.parametrize("kind", ["slora", "sglang", "punica", "grouped", "sequential", "merged-swap"])
def test_adapters_must_fit_host_memory(kind: str) -> None:
    message = refused(kind, adapters={"count": 200, "ranks": 64}, storage={"host_gib": 8})
    assert message.startswith(f"storage.host_gib: 8.0: {kind} keeps its adapters in host memory, ")
    least = float(message.split("at least ")[1].split(",")[0])
    scenario(kind, adapters={"count": 200, "ranks": 64}, storage={"host_gib": least})


# S-LoRA


def test_slora_resolves_the_prefill_limit_from_the_pool() -> None:
    assert scenario("slora", max_total_token_num=60_000).engine.max_num_batched_tokens == 10_000
    assert scenario("slora", max_total_token_num=6000).engine.max_num_batched_tokens == 4096
    assert 4096 <= scenario("slora", gpu="h100-80gb").engine.max_num_batched_tokens < 30_000


def test_the_paper_overlaps_and_the_artifact_does_not() -> None:
    paper, code = scenario("slora").engine.adapter_loading, scenario("slora", artifact=True).engine.adapter_loading
    assert (paper.overlap, paper.prefetch, code.overlap, code.prefetch) == (True, True, False, False)
    assert scenario("slora", adapter_loading={"overlap": False}).engine.adapter_loading.prefetch is False


def test_the_paper_serves_any_rank_grouped_queries_and_several_gpus() -> None:
    scenario("slora", "llama-3.1-8b", "h100-80gb", tensor_parallel_size=4, adapters={"count": 3, "ranks": 200})
    assert refused("slora", adapters={"count": 3, "ranks": 257}).endswith("slora serves ranks up to 256")


def test_the_artifact_says_what_it_can_serve() -> None:
    grouped = refused("slora", "llama-3.1-8b", "h100-80gb", artifact=True)
    assert grouped.startswith("model: 'llama-3.1-8b': llama-3.1-8b has 8 KV heads for 32 attention heads, and S-LoRA's")
    assert "multi-head models only, such as llama-2-7b" in grouped
    ranks = refused("slora", artifact=True, adapters={"count": 4, "ranks": {8: 0.5, 24: 0.5}})
    assert ranks == "adapters.ranks: 24: S-LoRA's published code serves ranks 8, 16, 32, 64, 128 only"
    degree = refused("slora", artifact=True, tensor_parallel_size=2)
    assert degree.endswith("must be 1: S-LoRA's published code serves adapters on one GPU only")
    assert refused("slora", artifact=True, page="16KiB").endswith("has rows only: row")


def test_a_prefill_must_hold_a_sequence() -> None:
    assert refused("slora", batch_max_tokens=1000).startswith("engine.batch_max_tokens: 1000: must be at least engine.")


def test_a_page_must_hold_a_token(tmp_path: Path) -> None:
    """80 heads of 128 elements: 20 KiB a token and layer."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 10_240,
        "intermediate_size": 16_384,
        "num_hidden_layers": 8,
        "num_attention_heads": 80,
        "num_key_value_heads": 80,
        "vocab_size": 32_000,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    message = refused("slora", str(path), page="16KiB")
    assert message == "engine.page: '16KiB': one token's keys take 20480 bytes in each layer: row or 64KiB"
    scenario("slora", str(path), page="64KiB")
    scenario("slora", str(path), page="16KiB", tensor_parallel_size=2)


# LoRAX


def test_lorax_resolves_as_its_launcher_does() -> None:
    engine: Any = scenario("lorax").engine
    assert engine.max_batch_prefill_tokens == 4095 + 50
    assert (engine.max_loras, engine.max_num_seqs, engine.enforce_eager) == (1024, 1024, False)
    assert engine.adapter_loading.pinned is False


LORAX = [
    ({"max_batch_prefill_tokens": 100}, "engine.max_batch_prefill_tokens: 100: must be at least engine.max_model_len"),
    (
        {"max_batch_total_tokens": 100},
        "engine.max_batch_total_tokens: 100: must be at least engine.max_model_len (4096)",
    ),
    ({"adapter_memory_fraction": 0.0}, "engine.adapter_memory_fraction: 0.0: must be above 0 unless adapters are prel"),
    ({"preloaded_adapter_ids": [1, 11]}, "engine.preloaded_adapter_ids: 11: must be an adapter id from 1 to adapters"),
    ({"preloaded_adapter_ids": [1, 1]}, "engine.preloaded_adapter_ids: [1, 1]: an id is listed twice"),
]


@pytest.mark.parametrize(("changes", "message"), LORAX)
def test_lorax_refuses(changes: dict[str, Any], message: str) -> None:
    assert refused("lorax", **changes).startswith(message)


def test_lorax_keeps_adapters_on_the_host_only_if_asked() -> None:
    many = {"adapters": {"count": 200, "ranks": 64}, "storage": {"host_gib": 8}}
    scenario("lorax", **many)
    assert refused("lorax", host_cache=True, **many).startswith("storage.host_gib: 8.0: lorax keeps its adapters")


# SGLang

SGLANG_DEFAULTS = [
    ("a10g", 1, 2048, 24),
    ("a10g", 4, 2048, 80),
    ("l40s", 1, 4096, 32),
    ("h100-80gb", 1, 8192, 256),
    ("h200-141gb", 8, 8192, 512),
    ("b200", 1, 16_384, 512),
]


@pytest.mark.parametrize(("gpu", "tp", "chunk", "graphs"), SGLANG_DEFAULTS)
def test_sglang_defaults_follow_the_gpu(gpu: str, tp: int, chunk: int, graphs: int) -> None:
    given = scenario("sglang", gpu=gpu, tensor_parallel_size=tp)
    engine: Any = given.engine
    assert (engine.chunked_prefill_size, engine.cuda_graph_max_bs) == (chunk, graphs)
    memory_mib = given.gpu_spec.memory_bytes / 2**20
    reserved = 512 + 1.5 * chunk + 2 * graphs + tp / 8 * 1024
    reserved = max(reserved, 10_240) if memory_mib > 60 * 1024 else reserved
    assert engine.mem_fraction_static == pytest.approx(1 - reserved / memory_mib, abs=6e-4)


def test_sglang_sizes_slots_and_seats() -> None:
    given = scenario("sglang", gpu="h200-141gb", adapters={"count": 3, "ranks": {8: 0.5, 48: 0.5}})
    assert given.engine.max_lora_rank == 48
    assert given.engine.max_num_seqs == 4096  # 230,000 tokens of 4,096 at most
    assert scenario("sglang").engine.max_num_seqs == 2048
    assert scenario("sglang").engine.max_num_batched_tokens == 2048


SGLANG = [
    ({"max_loaded_loras": 4}, "engine.max_loaded_loras: 4: must be at least engine.max_loras_per_batch (8)"),
    ({"max_loaded_loras": 20, "adapter_loading": {"overlap": True}, "adapters": {"count": 30}}, "engine.max_loaded_l"),
    ({"max_lora_rank": 8, "adapters": {"count": 1, "ranks": 16}}, "adapters.ranks: 16: sglang serves ranks up to 8"),
    ({"max_loras_per_batch": 2, "adapters": {"count": 4, "pinned": [1, 2]}}, "adapters.pinned: [1, 2]: at most 1 of 2"),
]


@pytest.mark.parametrize(("changes", "message"), SGLANG)
def test_sglang_refuses(changes: dict[str, Any], message: str) -> None:
    assert refused("sglang", **changes).startswith(message)


# Punica and the baselines


def test_punica_serves_one_rank_on_one_gpu() -> None:
    mixed = refused("punica", adapters={"count": 4, "ranks": {16: 0.5, 32: 0.5}})
    assert mixed.startswith(
        "adapters.ranks: [16, 32]: Punica's kernels take one rank for all adapters: give one of 16,"
    )
    assert refused("punica", adapters={"count": 4, "ranks": 8}).endswith("Punica serves ranks 16, 32, 64, 96, 128 only")
    assert refused("punica", tensor_parallel_size=2).startswith("engine.tensor_parallel_size: 2: must be 1: Punica")
    assert refused("punica", "mixtral-8x7b", "h200-141gb").startswith("model: 'mixtral-8x7b': Punica adapts dense")
    scenario("punica", adapters={"count": 4, "ranks": {96: 1.0, 8: 0.0}})


@pytest.mark.parametrize("kind", ["grouped", "sequential", "merged-swap"])
def test_baselines_do_not_split_prompts(kind: str) -> None:
    assert scenario(kind).engine.max_num_batched_tokens == 8192
    assert scenario(kind, "llama-3.1-8b", "h200-141gb", max_model_len=20_000).engine.max_num_batched_tokens == 20_000
    message = refused(kind, max_num_batched_tokens=4000)
    assert message.startswith("engine.max_num_batched_tokens: 4000: must be at least engine.max_model_len (4096)")


def test_merged_swap_holds_one_adapter() -> None:
    assert scenario("merged-swap").engine.max_loras == 1
    assert refused("merged-swap", max_loras=2).startswith("engine.max_loras: 2: unknown key")


@pytest.mark.parametrize("kind", ["grouped", "sequential"])
def test_pinned_adapters_leave_a_slot_free(kind: str) -> None:
    scenario(kind, max_loras=3, adapters={"count": 4, "pinned": [1, 2]})
    message = refused(kind, max_loras=2, adapters={"count": 4, "pinned": [1, 2]})
    assert message.endswith("at most 1 of 2 slots: one slot must stay free to move")


@pytest.mark.parametrize(
    ("engine", "key"),
    [
        ({"kind": "lorax", "adapter_loading": {"overlap": True}}, "engine.adapter_loading.overlap"),
        ({"kind": "grouped", "adapter_loading": {"overlap": True}}, "engine.adapter_loading.overlap"),
        ({"kind": "merged-swap", "kernels": "sgmv"}, "engine.kernels"),
    ],
)
def test_what_an_engine_cannot_do_is_refused_not_ignored(engine: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        scenario_from_dict({"model": "llama-2-7b", "adapters": {"ranks": {16: 1.0}}, "engine": engine})
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"engine": {"kind": "slora"}, "adapters": {"ranks": 16, "preload": True}}, "adapters.preload"),
        ({"cluster": {"replicas": 2, "router": {"kind": "punica", "scrape_s": 1.0}}}, "cluster.router.scrape_s"),
        ({"cluster": {"replicas": 2, "router": {"kind": "punica", "delay_s": 1.0}}}, "cluster.router.delay_s"),
    ],
)
def test_what_has_no_effect_is_refused(sections: dict[str, Any], key: str) -> None:
    given = {"model": "llama-2-7b", "engine": {"kind": "punica"}, "adapters": {"ranks": 16}, **sections}
    with pytest.raises(ConfigError) as caught:
        scenario_from_dict(given)
    assert caught.value.key == key


@pytest.mark.parametrize(("kind", "gpu"), [("vllm", 2), ("sglang", 3), ("lorax", 0), ("punica", 4), ("grouped", 4)])
def test_registered_adapters_are_on_the_gpu_as_far_as_the_engine_brings_them_there(kind: str, gpu: int) -> None:
    places = {"sglang": {"max_loras_per_batch": 3}, "lorax": {}}.get(kind, {"max_loras": 2 if kind == "vllm" else 8})
    adapters = {"count": 4, "ranks": 16, "preload": True}
    scenario = scenario_from_dict({"model": "llama-2-7b", "engine": {"kind": kind, **places}, "adapters": adapters})
    assert len(initial_adapters(scenario).gpu) == gpu
