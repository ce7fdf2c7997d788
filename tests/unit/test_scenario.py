"""Scenarios that are right: defaults, how they resolve, and that nothing is lost between loading and dumping."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from simlora.errors import ConfigError
from simlora.scenario.adapters import largest_remainder
from simlora.scenario.checks import UNBUILT_KEYS
from simlora.scenario.engines.vllm import host_cache_bytes, largest_host_cache
from simlora.scenario.load import changed, load_scenario, scenario_from_dict
from simlora.scenario.lora_modules import adapter_bytes
from simlora.scenario.root import Scenario
from simlora.scenario.schema import json_schema


def scenario(**sections: Any) -> Scenario:
    return scenario_from_dict({"model": "llama-3.1-8b", **sections})


def test_only_the_model_is_required() -> None:
    plain = scenario()
    assert plain.gpu_spec.name == "h200-141gb"
    assert (plain.engine.max_loras, plain.engine.max_cpu_loras, plain.engine.max_lora_rank) == (1, 1, 16)
    assert (plain.adapters.count, plain.adapters.ranks) == (1, {16: 1.0})
    assert plain.workload.duration_s == 600
    assert plain.workload.arrivals is not None
    assert plain.workload.arrivals.rate_rps == 1.0  # type: ignore[union-attr]
    assert plain.cost.gpu_hour_usd == plain.gpu_spec.price_hour_usd
    assert plain.source == "<arguments>"


@pytest.mark.parametrize(
    ("version", "gpu", "tokens", "seqs"),
    [
        ("0.20", "h200", 8192, 1024),
        ("0.20", "h100-80gb", 8192, 1024),
        ("0.20", "h100-64gb", 2048, 256),
        ("0.20", "a100-80gb", 2048, 256),
        ("0.20", "l4", 2048, 256),
        ("0.20", "mi300x", 8192, 1024),
        ("0.8.5", "h100-80gb", 8192, 1024),
        ("0.8.5", "a100-80gb", 8192, 1024),
        ("0.8.5", "a100-40gb", 2048, 256),
        ("0.8.5", "h100-64gb", 2048, 256),
    ],
)
def test_batch_defaults(version: str, gpu: str, tokens: int, seqs: int) -> None:
    engine = scenario(gpu=gpu, engine={"version": version}).engine
    assert (engine.max_num_batched_tokens, engine.max_num_seqs) == (tokens, seqs)


def test_version_defaults() -> None:
    new, old = scenario().engine, scenario(engine={"version": "0.8.5"}).engine
    assert (new.async_scheduling, new.enable_prefix_caching) == (True, True)
    assert (old.async_scheduling, old.enable_prefix_caching) == (False, True)
    assert new.max_model_len == 131_072


def test_default_limits_follow_what_is_given() -> None:
    assert scenario(engine={"max_num_batched_tokens": 512}).engine.max_num_seqs == 512
    assert scenario(engine={"max_num_seqs": 4, "max_model_len": 100}).engine.max_num_batched_tokens == 400
    whole = scenario(engine={"enable_chunked_prefill": False, "max_model_len": 20_000}).engine
    assert whole.max_num_batched_tokens == 20_000


def test_patch_releases_are_their_minor_version() -> None:
    assert scenario(engine={"version": "0.20.2"}).engine.version == "0.20"


def test_max_cpu_loras_follows_max_loras() -> None:
    """Raising max_loras alone must not be refused because the host cache's default stayed behind."""
    assert scenario(engine={"max_loras": 2}).engine.max_cpu_loras == 2


def test_default_rank_fits_small_slots() -> None:
    assert scenario(engine={"max_lora_rank": 8}).adapters.ranks == {8: 1.0}


def test_null_means_not_given() -> None:
    given_null = scenario(engine={"max_loras": 4, "max_num_seqs": None, "speculative": None}, gpu=None)
    assert given_null.to_dict() == scenario(engine={"max_loras": 4}).to_dict()


@pytest.mark.parametrize("key", UNBUILT_KEYS)
@pytest.mark.parametrize("empty", [None, [], {}])
def test_unbuilt_keys_may_be_empty(key: str, empty: object) -> None:
    section, name = key.split(".")
    assert scenario(**{section: {name: empty}}).to_dict() == scenario().to_dict()


def test_popularity_gives_the_count_and_the_rate() -> None:
    popularity = {"kind": "explicit", "rates_rps": [1, 0.5, 0.5]}
    explicit = scenario(adapters={"popularity": popularity, "base_fraction": 0.5})
    assert explicit.adapters.count == 3
    assert explicit.workload.arrivals.rate_rps == 4  # type: ignore[union-attr]
    classes = [{"count": 2, "share": 0.9}, {"count": 8, "share": 0.1}]
    assert scenario(adapters={"popularity": {"kind": "classes", "classes": classes}}).adapters.count == 10


def test_without_lora_all_requests_are_for_the_base() -> None:
    base = scenario(engine={"enable_lora": False})
    assert (base.adapters.count, base.adapters.base_fraction) == (0, 1.0)
    popularity = {"kind": "explicit", "rates_rps": [1, 2]}
    assert scenario(engine={"enable_lora": False}, adapters={"popularity": popularity}).adapters.count == 0


def test_trace_workload() -> None:
    workload = scenario(workload={"trace": {"path": "a.csv", "format": "azure"}}).workload
    assert workload.arrivals is workload.prompt_tokens is workload.duration_s is None
    assert workload.scale_rate == 1.0


def test_paths_start_at_the_scenario_file(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("model: llama-3.1-8b\nworkload: {trace: {path: t/a.csv, format: azure}}\n")
    loaded = load_scenario(path)
    assert loaded.path("t/a.csv") == tmp_path / "t" / "a.csv"
    assert loaded.path("/abs.csv") == Path("/abs.csv")


def test_yaml_numbers_with_exponent(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("model: llama-3.1-8b\nworkload: {duration_s: 1e3}\n")
    assert load_scenario(path).workload.duration_s == 1000


@pytest.mark.parametrize(
    ("shares", "total", "expected"),
    [
        ({8: 0.4, 16: 0.3, 32: 0.2, 64: 0.1}, 1000, {8: 400, 16: 300, 32: 200, 64: 100}),
        ({8: 0.5, 16: 0.5}, 3, {8: 2, 16: 1}),
        ({8: 1 / 3, 16: 1 / 3, 32: 1 / 3}, 10, {8: 4, 16: 3, 32: 3}),
        ({8: 0.05, 16: 0.95}, 10, {8: 1, 16: 9}),
        ({16: 1.0}, 0, {16: 0}),
    ],
)
def test_rank_counts_by_largest_remainder(shares: dict[int, float], total: int, expected: dict[int, int]) -> None:
    assert largest_remainder(shares, total) == expected


@given(st.lists(st.integers(1, 100), min_size=1, max_size=8), st.integers(0, 5000))
def test_rank_counts_sum_to_the_total(weights: list[int], total: int) -> None:
    shares = {2**i: weight / sum(weights) for i, weight in enumerate(weights)}
    counts = largest_remainder(shares, total)
    assert sum(counts.values()) == total
    assert all(abs(counts[rank] - share * total) < 1 for rank, share in shares.items())


@pytest.mark.parametrize(
    ("model", "rank", "megabytes"),
    [("llama-2-7b", 16, 82), ("llama-3.1-8b", 16, 92), ("llama-3.1-8b", 64, 369), ("llama-3.1-70b", 64, 1692)],
)
def test_slot_bytes_on_one_gpu(model: str, rank: int, megabytes: float) -> None:
    """Seven linear layers, lm_head and embed_tokens, as vLLM allocates them."""
    one = scenario_from_dict({"model": model})
    assert adapter_bytes(one.model_spec, rank, one.slot_modules) / 1e6 == pytest.approx(megabytes, abs=0.6)


def test_adapter_bytes_of_the_seven_linear_layers() -> None:
    one = scenario()
    assert adapter_bytes(one.model_spec, 1, one.adapter_modules) == 2 * 81_920 * 32
    qwen = scenario_from_dict({"model": "qwen2.5-7b"})
    assert adapter_bytes(qwen.model_spec, 1, qwen.slot_modules) == pytest.approx(5.05e6, rel=0.002)


def test_slot_modules_follow_the_engines_choice() -> None:
    linear = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    assert scenario().slot_modules == (*linear, "embed_tokens", "lm_head")
    attention = {"target_modules": "attention"}
    narrow = scenario(engine={"lora_target_modules": "as-adapters"}, adapters=attention)
    assert narrow.slot_modules == narrow.adapter_modules == linear[:4]
    assert scenario(adapters=attention).slot_modules[:7] == linear
    merged = scenario(engine={"lora_target_modules": ["q_proj", "up_proj"]})
    assert merged.slot_modules == ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")


def test_experts_have_lora_in_the_new_version_only() -> None:
    new = scenario_from_dict({"model": "mixtral-8x7b"})
    old = scenario_from_dict(
        {"model": "mixtral-8x7b", "engine": {"version": "0.8.5"}, "adapters": {"target_modules": "attention"}}
    )
    assert "up_proj" in new.slot_modules
    assert "up_proj" not in old.slot_modules
    per_expert = 16 * 3 * (4096 + 14336) * 32 * 8 * 2
    assert adapter_bytes(new.model_spec, 16, ("gate_proj", "up_proj", "down_proj")) == per_expert


def test_host_cache_counts_the_largest_adapters_of_all_workers() -> None:
    engine = {"tensor_parallel_size": 2, "max_loras": 4, "max_cpu_loras": 6, "max_lora_rank": 32}
    mixed = scenario(engine=engine, adapters={"count": 10, "ranks": {8: 0.6, 32: 0.4}}, storage={"host_gib": 10})
    one = adapter_bytes(mixed.model_spec, 1, mixed.adapter_modules)
    assert host_cache_bytes(mixed, 6) == 2 * one * (4 * 32 + 2 * 8)
    assert largest_host_cache(mixed) == 10


def test_the_suggested_host_cache_is_the_largest_that_fits() -> None:
    sections: dict[str, Any] = {
        "engine": {"max_loras": 4, "max_cpu_loras": 500, "max_lora_rank": 64},
        "adapters": {"count": 500, "ranks": {8: 0.5, 64: 0.5}},
        "storage": {"host_gib": 40.0},
    }
    with pytest.raises(ConfigError) as caught:
        scenario(**sections)
    most = int(caught.value.allowed.rsplit(" ", 1)[1])
    fits = scenario(**{**sections, "engine": {**sections["engine"], "max_cpu_loras": most}})
    assert host_cache_bytes(fits, most) <= 40 * 2**30 < host_cache_bytes(fits, most + 1)


def test_changed_resolves_defaults_anew() -> None:
    small = scenario(gpu="l4", engine={"max_loras": 4})
    big = changed(small, {"gpu": "h200", "engine.max_loras": 16})
    assert (small.engine.max_loras, small.engine.max_cpu_loras, small.engine.max_num_seqs) == (4, 4, 256)
    assert (big.engine.max_loras, big.engine.max_cpu_loras, big.engine.max_num_seqs) == (16, 16, 1024)
    assert changed(big, {"gpu.memory_gib": 60}).engine.max_num_seqs == 256
    assert changed(big, {"engine.max_loras": None}).engine.max_loras == 1
    assert changed(scenario(), {"workload.arrivals": {"kind": "poisson", "rate_rps": 7}}).raw["workload"]


def test_changed_keeps_source_and_folder(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("model: llama-3.1-8b\n")
    other = changed(load_scenario(path), {"seed": 2})
    assert (other.seed, other.source, other.folder) == (2, str(path), tmp_path)
    with pytest.raises(ConfigError, match=r"engine\.max_loras: 0"):
        changed(other, {"engine.max_loras": 0})


def test_frozen() -> None:
    one = scenario()
    with pytest.raises(ValidationError):
        one.seed = 2  # type: ignore[misc]
    with pytest.raises(ValidationError):
        one.engine.max_loras = 2


def test_pickle() -> None:
    one = scenario(engine={"max_loras": 4})
    again = pickle.loads(pickle.dumps(one))
    assert again == one
    assert again.model_spec == one.model_spec


def all_models(model: type[BaseModel]) -> set[type[BaseModel]]:
    found = {model}
    for field in model.model_fields.values():
        pending = [field.annotation]
        while pending:
            annotation = pending.pop()
            if isinstance(annotation, type) and issubclass(annotation, BaseModel) and annotation not in found:
                found |= all_models(annotation)
            pending += get_args(annotation)
    return found


def test_every_key_is_described() -> None:
    models = all_models(Scenario)
    assert len(models) > 25
    for model in models:
        for name, field in model.model_fields.items():
            assert field.description or name == "kind", f"{model.__name__}.{name}"


def test_schema_offers_names_and_null() -> None:
    schema = json_schema()
    assert schema["required"] == ["model"]
    assert "llama-3.1-8b" in schema["properties"]["model"]["examples"]
    assert "h100-80gb" in schema["properties"]["gpu"]["anyOf"][0]["examples"]
    engine = schema["$defs"]["VllmConfig"]["properties"]
    assert {"type": "null"} in engine["max_cpu_loras"]["anyOf"]
    assert schema["$defs"]["VllmConfig"]["additionalProperties"] is False
