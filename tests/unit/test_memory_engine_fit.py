"""What the engines other than vLLM refuse for lack of memory, and the largest value that each message names."""

from __future__ import annotations

from typing import Any

import pytest

from simlora.engines.fit import build_ledger, require_fit, scenario_shortage
from simlora.errors import ConfigError
from simlora.memory.ledger import binding
from simlora.scenario.load import scenario_from_dict
from simlora.scenario.root import Scenario

KINDS = ("slora", "lorax", "sglang", "punica", "grouped", "sequential", "merged-swap")


def scenario(kind: str, model: str = "llama-2-7b", gpu: str = "a10g", **changes: Any) -> Scenario:
    adapters = {"count": 10, "ranks": 16, **changes.pop("adapters", {})}
    return scenario_from_dict({"model": model, "gpu": gpu, "engine": {"kind": kind, **changes}, "adapters": adapters})


def refused(given: Scenario) -> tuple[str, str]:
    """(message, binding line)."""
    with pytest.raises(ConfigError) as caught:
        require_fit(given)
    built = build_ledger(given)
    return str(caught.value), binding(built, scenario_shortage(given, built))


@pytest.mark.parametrize("kind", KINDS)
def test_a_context_longer_than_the_cache_names_the_longest(kind: str) -> None:
    given = scenario(kind, "llama-3.1-8b", adapters={"ranks": 16})
    message, binds = refused(given)
    assert message.startswith("<arguments>: engine.max_model_len: 131072: context length binds: ")
    assert binds == f"does not fit: {message.split(': ', 3)[3]}"
    largest = int(message.rsplit(" ", 1)[1])
    assert 4096 < largest < 30_000
    require_fit(scenario(kind, "llama-3.1-8b", max_model_len=largest))
    with pytest.raises(ConfigError):
        require_fit(scenario(kind, "llama-3.1-8b", max_model_len=largest + 64))


@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_do_not_fit_name_the_tensor_parallel_size(kind: str) -> None:
    message, _ = refused(scenario(kind, "llama-3.1-70b", "h100-80gb", max_model_len=8192))
    assert message.startswith("<arguments>: engine.tensor_parallel_size: 1: weights bind: 141.1 GB on each GPU")
    if kind == "punica":
        assert message.endswith("punica runs on one GPU: a larger GPU or a smaller model")
        return
    degree = int(message.rsplit("smallest tensor_parallel_size that fits: ", 1)[1])
    require_fit(scenario(kind, "llama-3.1-70b", "h100-80gb", max_model_len=8192, tensor_parallel_size=degree))
    assert degree == (4 if kind in ("sglang", "grouped", "sequential") else 2)


LIMITS = [
    ("sglang", {"max_loras_per_batch": 200}, "max_loras_per_batch", "LoRA slots bind"),
    ("punica", {"max_loras": 200}, "max_loras", "LoRA slots bind"),
    ("grouped", {"max_loras": 200}, "max_loras", "LoRA slots bind"),
    ("sequential", {"max_num_batched_tokens": 100_000}, "max_num_batched_tokens", "prefill binds"),
    ("merged-swap", {"max_num_batched_tokens": 100_000}, "max_num_batched_tokens", "prefill binds"),
    ("slora", {"pool_size_lora": 20_000}, "pool_size_lora", "adapter memory binds"),
    ("slora", {"batch_max_tokens": 100_000}, "batch_max_tokens", "prefill binds"),
    ("lorax", {"max_batch_prefill_tokens": 50_000}, "max_batch_prefill_tokens", "prefill binds"),
    ("lorax", {"adapter_memory_fraction": 0.4}, "adapter_memory_fraction", "adapter memory binds"),
]


@pytest.mark.parametrize(("kind", "changes", "key", "term"), LIMITS)
def test_the_largest_value_that_fits_does_fit_and_the_next_does_not(
    kind: str, changes: dict[str, Any], key: str, term: str
) -> None:
    message, _ = refused(scenario(kind, **changes))
    assert message.startswith(f"<arguments>: engine.{key}: {changes[key]}: {term}")
    text = message.rsplit(f"largest {key} that fits: ", 1)[1]
    largest, step = (float(text), 0.001) if "fraction" in key else (int(text), 1)
    require_fit(scenario(kind, **{key: largest}))
    with pytest.raises(ConfigError):
        require_fit(scenario(kind, **{key: largest + step}))


def test_a_pool_larger_than_the_gpu_or_smaller_than_a_sequence() -> None:
    large, _ = refused(scenario("slora", max_total_token_num=50_000))
    small, _ = refused(scenario("slora", max_total_token_num=500))
    assert "engine.max_total_token_num: 500: between 4096 (max_model_len 4096, or the largest adapter) and " in small
    most = int(large.split(" and ")[1].split(" ")[0])
    require_fit(scenario("slora", max_total_token_num=most))
    with pytest.raises(ConfigError):
        require_fit(scenario("slora", max_total_token_num=most + 1))


def test_more_tokens_than_lorax_has_blocks_for() -> None:
    message, _ = refused(scenario("lorax", max_batch_total_tokens=100_000))
    most = int(message.split(" and ")[1].split(" ")[0])
    require_fit(scenario("lorax", max_batch_total_tokens=most))


def test_an_adapter_area_smaller_than_the_largest_adapter() -> None:
    pool, _ = refused(scenario("slora", unified_memory=False, pool_size_lora=63))
    assert pool.endswith("adapters get 63; smallest pool_size_lora that holds it: 64")
    require_fit(scenario("slora", unified_memory=False, pool_size_lora=64))
    file, _ = refused(scenario("lorax", adapter_memory_fraction=0.001))
    assert file.endswith("smallest adapter_memory_fraction that holds it: 0.004")
    require_fit(scenario("lorax", adapter_memory_fraction=0.004))


def test_a_shared_pool_smaller_than_the_largest_adapter() -> None:
    engine = {"max_total_token_num": 600, "max_model_len": 256}
    message, _ = refused(scenario("slora", **engine, adapters={"ranks": 256}))
    assert message.startswith("<arguments>: engine.max_total_token_num: 600: between 1025 (")
    require_fit(scenario("slora", **{**engine, "max_total_token_num": 1025}, adapters={"ranks": 256}))


def test_sglang_must_leave_room_for_a_prefill() -> None:
    message, _ = refused(scenario("sglang", mem_fraction_static=0.99, chunked_prefill_size=16_384))
    assert message.startswith("<arguments>: engine.mem_fraction_static: 0.99: the static share and ")
    require_fit(scenario("sglang", mem_fraction_static=float(message.rsplit(" ", 1)[1]), chunked_prefill_size=16_384))


def test_two_problems_at_once_are_named_one_by_one() -> None:
    engine = {"max_total_token_num": 500, "unified_memory": False, "pool_size_lora": 10}
    message, _ = refused(scenario("slora", **engine))
    text = "adapters.ranks: 16: adapter memory binds: one adapter takes 64 rows, and all can get 10"
    assert message == f"<arguments>: {text}"
