"""What is refused, with which message, and what is only flagged."""

from __future__ import annotations

from typing import Any

import pytest

from simlora.engines.fit import build_ledger, require_fit, scenario_shortage
from simlora.engines.vllm.advice import memory_advice, rank_waste, slot_waste
from simlora.engines.vllm.fit import largest_max_loras
from simlora.engines.vllm.ledger import vllm_ledger
from simlora.errors import ConfigError
from simlora.memory.ledger import binding, ledger_rows
from simlora.scenario.load import scenario_from_dict
from simlora.scenario.root import Scenario


def scenario(model: str = "llama-3.1-8b", gpu: str = "h100-80gb", **sections: Any) -> Scenario:
    return scenario_from_dict({"model": model, "gpu": gpu, **sections})


def crowded() -> Scenario:
    """Rank 32 in 224 slots of Llama-3.1-8B on 64 GB: no KV cache was left on the real machine."""
    return scenario(
        gpu="h100-64gb",
        engine={"version": "0.8.5", "max_loras": 224, "max_lora_rank": 32, "max_num_seqs": 2048},
        adapters={"count": 300, "ranks": 32},
    )


def refused(given: Scenario) -> str:
    with pytest.raises(ConfigError) as caught:
        require_fit(given)
    assert caught.value.source == given.source
    return str(caught.value)


def test_too_many_slots_name_the_largest_count_that_fits() -> None:
    given = crowded()
    message = refused(given)
    assert message.startswith("<arguments>: engine.max_loras: 224: LoRA slots bind: 224 slots of rank 32 take 42.3 GB")
    largest = largest_max_loras(build_ledger(given))
    assert largest is not None and message.endswith(f"largest max_loras that fits: {largest}")
    assert 96 < largest < 128  # 96 slots started; 128 left fewer tokens than the model's context
    assert vllm_ledger(given).with_settings(max_loras=largest).fits
    assert not vllm_ledger(given).with_settings(max_loras=largest + 1).fits


def test_weights_that_do_not_fit_name_the_tensor_parallel_size() -> None:
    message = refused(scenario("llama-3.1-70b"))
    assert message.startswith("<arguments>: engine.tensor_parallel_size: 1: weights bind: 141.1 GB on each GPU")
    assert message.endswith("smallest tensor_parallel_size that fits: 4")


def test_weights_too_large_for_any_degree() -> None:
    message = refused(scenario("llama-3.1-70b", "l4"))
    assert message.endswith("smallest tensor_parallel_size that fits: 16")
    tiny = scenario("llama-3.1-70b", {"name": "l4", "memory_gib": 8})  # type: ignore[arg-type]
    assert refused(tiny).endswith("no tensor_parallel_size fits")


def test_a_context_longer_than_the_cache_names_the_longest() -> None:
    given = scenario(gpu="a10g", engine={"max_num_seqs": 64})
    ledger = build_ledger(given)
    message = refused(given)
    assert message.startswith("<arguments>: engine.max_model_len: 131072: context length binds: the KV cache holds ")
    assert message.endswith(f"largest max_model_len that fits: {ledger.kv_tokens - 16}")
    require_fit(scenario(gpu="a10g", engine={"max_num_seqs": 64, "max_model_len": ledger.kv_tokens - 16}))


def test_slots_against_context_offer_both() -> None:
    given = scenario(
        gpu="h100-80gb", engine={"max_loras": 64, "max_lora_rank": 128}, adapters={"count": 80, "ranks": 128}
    )
    message = refused(given)
    assert "engine.max_loras: 64" in message and "(or max_model_len up to " in message


def test_utilization_must_leave_the_cuda_context() -> None:
    message = refused(scenario(engine={"gpu_memory_utilization": 0.999}))
    assert message.startswith("<arguments>: engine.gpu_memory_utilization: 0.999: ")
    assert message.endswith("largest that fits: 0.993")
    require_fit(scenario(engine={"gpu_memory_utilization": 0.993, "max_num_seqs": 128, "enforce_eager": True}))


def test_a_block_override_must_hold_one_sequence_and_fit_the_gpu() -> None:
    short = refused(scenario(engine={"num_gpu_blocks_override": 100, "max_model_len": 4096}))
    assert "engine.num_gpu_blocks_override: 100: between 256 (one sequence of max_model_len 4096) and " in short
    large = refused(scenario(engine={"num_gpu_blocks_override": 100_000, "max_model_len": 4096, "max_loras": 8}))
    assert "engine.num_gpu_blocks_override: 100000" in large


def test_a_fitting_scenario_returns_its_ledger() -> None:
    given = scenario(engine={"max_loras": 8, "max_model_len": 8192}, adapters={"count": 8})
    assert require_fit(given) == build_ledger(given)
    assert scenario_shortage(given, build_ledger(given)) is None


def test_rows_add_up_to_the_gpu() -> None:
    ledger = build_ledger(scenario(engine={"max_loras": 8, "max_model_len": 8192}, adapters={"count": 8}))
    rows = ledger_rows(ledger)
    assert sum(row.bytes for row in rows) == ledger.total_bytes
    assert sum(row.share for row in rows) == pytest.approx(1)
    assert [row.label for row in rows][:2] == ["weights", "LoRA slots"]
    assert all(row.bytes >= 0 for row in rows)
    assert "8 of rank 16, 92.4 MB each" in rows[1].note


def test_binding_says_what_takes_the_memory() -> None:
    fitting = scenario(engine={"max_loras": 8, "max_model_len": 8192}, adapters={"count": 8})
    full = crowded()
    assert binding(build_ledger(fitting)).startswith("weights take 21% of the 78.2 GB")
    assert binding(build_ledger(full), scenario_shortage(full, build_ledger(full))).startswith(
        "does not fit: LoRA slots bind"
    )


def test_a_rank_far_above_the_adapters_is_flagged_with_its_kv_tokens() -> None:
    engine = {"max_loras": 32, "max_lora_rank": 64, "max_model_len": 8192}
    given = scenario(engine=engine, adapters={"count": 40, "ranks": {8: 0.5, 12: 0.5}})
    lean = scenario(engine={**engine, "max_lora_rank": 16}, adapters={"count": 40, "ranks": {8: 0.5, 12: 0.5}})
    waste = rank_waste(given)
    assert waste is not None and (waste.value, waste.enough) == (64, 16)
    assert waste.kv_tokens == build_ledger(lean).kv_tokens - build_ledger(given).kv_tokens
    assert waste.slot_bytes == 32 * 48 * 5_772_288
    line, time = memory_advice(given, vllm_ledger(given))
    assert time.startswith("max_lora_rank 64 instead of 16 also adds ")
    assert line.startswith("engine.max_lora_rank 64 is above the largest adapter rank 12")
    assert f"{waste.kv_tokens} KV tokens" in line
    assert rank_waste(lean) is None and memory_advice(lean, vllm_ledger(lean)) == ()


def test_more_slots_than_adapters_are_flagged() -> None:
    given = scenario(engine={"max_loras": 32, "max_model_len": 8192}, adapters={"count": 10})
    waste = slot_waste(given)
    assert waste is not None and (waste.value, waste.enough) == (32, 10)
    assert waste.slot_bytes == 22 * 92_356_608
    assert any("above the 10 adapters there are" in line for line in memory_advice(given, vllm_ledger(given)))


def test_without_lora_nothing_is_flagged() -> None:
    given = scenario(engine={"enable_lora": False, "max_model_len": 8192})
    assert memory_advice(given, vllm_ledger(given)) == ()


def test_sixteen_adapters_on_a_24_gb_card() -> None:
    """Mistral-7B with 16 rank-32 adapters on an A10G leaves a few GB for the KV cache."""
    given = scenario(
        "mistral-7b",
        "a10g",
        engine={"max_loras": 16, "max_lora_rank": 32, "max_num_seqs": 64, "max_model_len": 8192},
        adapters={"count": 16, "ranks": 32},
    )
    ledger = require_fit(given)
    assert 2e9 < ledger.kv_bytes < 5e9
    assert ledger.adapter_bytes(32) == pytest.approx(168e6, rel=0.01)
