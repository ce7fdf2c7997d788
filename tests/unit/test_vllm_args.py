"""Scenarios from the flags of `vllm serve`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simlora.errors import ConfigError
from simlora.scenario import vllm_args as flags
from simlora.scenario.engines.base import AdapterLoading
from simlora.scenario.engines.vllm import VllmConfig
from simlora.scenario.load import scenario_from_dict
from simlora.scenario.root import Scenario
from simlora.scenario.vllm_args import scenario_from_vllm_args


def scenario(arguments: str, **base: Any) -> Scenario:
    return scenario_from_vllm_args(arguments, base).scenario


LONG = (
    "serve meta-llama/Llama-3.1-8B-Instruct --enable-lora --max-loras 8 --max-lora-rank 32 --max-cpu-loras 64 "
    "--max-num-seqs 128 --max-num-batched-tokens 4096 --max-model-len 8192 --gpu-memory-utilization 0.85 "
    "--block-size 32 --num-gpu-blocks-override 5000 --tensor-parallel-size 2 --enforce-eager --fully-sharded-loras "
    "--no-enable-prefix-caching --no-async-scheduling --specialize-active-lora --lora-target-modules q_proj v_proj"
)


def test_all_flags_of_the_engine() -> None:
    engine = scenario(LONG).engine
    assert engine == VllmConfig(
        enable_lora=True,
        max_loras=8,
        max_lora_rank=32,
        max_cpu_loras=64,
        max_num_seqs=128,
        max_num_batched_tokens=4096,
        max_model_len=8192,
        gpu_memory_utilization=0.85,
        block_size=32,
        num_gpu_blocks_override=5000,
        tensor_parallel_size=2,
        enforce_eager=True,
        fully_sharded_loras=True,
        enable_prefix_caching=False,
        async_scheduling=False,
        specialize_active_lora=True,
        lora_target_modules=("q_proj", "v_proj"),
        kernels="padded",
        adapter_loading=AdapterLoading(overlap=False, pinned=True, prefetch=False),
    )


def test_spellings() -> None:
    """--flag=value, underscores, the program's name, short names and line continuations mean the same."""
    plain = scenario("serve llama-3.1-8b --enable-lora --max-loras 8 --tensor-parallel-size 2").to_dict()
    for arguments in (
        "vllm serve llama-3.1-8b --enable-lora --max-loras=8 -tp 2",
        "/opt/venv/bin/vllm serve llama-3.1-8b --enable_lora --max_loras=8 -tp=2",
        "llama-3.1-8b --enable-lora --max-loras 8 --tensor_parallel_size 2",
        "serve --model llama-3.1-8b --enable-lora --max-loras 8 -tp 2",
        "python3 -m vllm.entrypoints.openai.api_server --model llama-3.1-8b --enable-lora --max-loras 8 -tp 2",
        "vllm serve llama-3.1-8b \\\n  --enable-lora \\\n  --max-loras 8 -tp 2",
        "serve 'llama-3.1-8b' --enable-lora --max-loras '8' -tp \"2\"",
        "serve llama-3.1-8b --enable-lora=true --max-loras 2 --max-loras 8 -tp 2",
    ):
        assert scenario(arguments).to_dict() == plain, arguments


def test_lora_is_off_unless_asked_for() -> None:
    base = scenario("serve llama-3.1-8b", adapters={"count": 5})
    assert not base.engine.enable_lora
    assert base.adapters.count == 0


def test_old_style_switches_with_a_value() -> None:
    """vLLM up to 0.8 took --enable-chunked-prefill False."""
    command = "serve llama-3.1-8b --enable-chunked-prefill False --max-model-len 4096 --enable-prefix-caching"
    engine = scenario(command).engine
    assert (engine.enable_chunked_prefill, engine.enable_prefix_caching) == (False, True)


@pytest.mark.parametrize(
    ("text", "tokens"), [("8192", 8192), ("8k", 8000), ("8K", 8192), ("1.5k", 1500), ("auto", 131_072), ("-1", 131_072)]
)
def test_lengths(text: str, tokens: int) -> None:
    assert scenario(f"serve llama-3.1-8b --max-model-len {text}").engine.max_model_len == tokens


def test_ignored_flags_are_listed() -> None:
    result = scenario_from_vllm_args(
        "VLLM_LOGGING_LEVEL=INFO vllm serve llama-3.1-8b --port 8000 --trust-remote-code --dtype bfloat16 --api-key x "
        "--disable-log-requests"
    )
    assert result.notes == (
        "VLLM_LOGGING_LEVEL=INFO: ignored",
        "--api-key: does not matter to timing, ignored",
        "--disable-log-requests: does not matter to timing, ignored",
        "--dtype: does not matter to timing, ignored",
        "--port: does not matter to timing, ignored",
        "--trust-remote-code: does not matter to timing, ignored",
    )


def write_adapter(folder: Path, rank: int, modules: object) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"r": rank, "target_modules": modules}))
    return folder


def test_lora_modules_give_count_ranks_and_targets(tmp_path: Path) -> None:
    one = write_adapter(tmp_path / "one", 8, ["q_proj", "v_proj"])
    two = write_adapter(tmp_path / "two", 32, ["q_proj", "o_proj"])
    three = json.dumps({"name": "three", "path": str(one), "base_model_name": "m"})
    result = scenario_from_vllm_args(
        f"serve llama-3.1-8b --enable-lora --max-loras 3 --max-lora-rank 32 "
        f"--lora-modules one={one} two={two} '{three}' four=org/adapter --port 1"
    )
    adapters = result.scenario.adapters
    assert adapters.count == 4
    assert adapters.rank_counts() == {8: 2, 32: 2}
    assert adapters.target_modules == ("q_proj", "v_proj", "o_proj")
    assert result.notes[-1] == "1 of 4 adapters: no adapter_config.json, rank 32 assumed"


def test_lora_modules_with_unusual_targets_count_as_all_linear(tmp_path: Path) -> None:
    for name, modules in (("a", "all-linear"), ("b", ["q_proj", "router"]), ("c", None)):
        path = write_adapter(tmp_path / name, 16, modules)
        adapters = scenario(f"serve llama-3.1-8b --enable-lora --lora-modules x={path}").adapters
        assert (adapters.ranks, adapters.target_modules) == ({16: 1.0}, "all-linear")


def test_base_sections_fill_what_flags_do_not_say() -> None:
    base = {"gpu": "l4", "engine": {"version": "0.8.5", "max_loras": 2}, "adapters": {"count": 9}, "slo": {"ttft_s": 2}}
    mixed = scenario("serve llama-3.2-1b --enable-lora --max-loras 4", **base)
    assert (mixed.gpu_spec.name, mixed.engine.version, mixed.engine.max_loras) == ("l4", "0.8.5", 4)
    assert (mixed.adapters.count, mixed.slo.ttft_s) == (9, 2)


def test_equals_the_scenario_written_by_hand() -> None:
    by_hand = scenario_from_dict({"model": "llama-3.1-8b", "engine": {"max_loras": 4, "max_lora_rank": 64}})
    assert scenario("serve llama-3.1-8b --enable-lora --max-loras 4 --max-lora-rank 64").to_dict() == by_hand.to_dict()


WRONG = [
    ("", "model: None: required: serve MODEL"),
    ("serve --port 80", "model: None: required: serve MODEL"),
    ("serve 'llama-3.1-8b", 'vllm arguments: "serve \'llama-3.1-8b": cannot be split (No closing quotation)'),
    ("serve llama-3.1-8b extra", "vllm arguments: 'extra': belongs to no flag, and the model is given already"),
    (
        "serve llama-3.1-8b --max-lora 8",
        "--max-lora: None: not a vLLM flag that simlora knows; did you mean --max-loras?",
    ),
    ("serve llama-3.1-8b --frobnicate=1", "--frobnicate: '1': not a vLLM flag that simlora knows"),
    ("serve llama-3.1-8b --max-loras", "--max-loras: None: needs a value"),
    ("serve llama-3.1-8b --max-loras --enable-lora", "--max-loras: None: needs a value"),
    (
        "serve llama-3.1-8b --max-loras many",
        "--max-loras: 'many': must be a whole number, as 8192, 8k (8,000) or 8K (8,192)",
    ),
    ("serve llama-3.1-8b --gpu-memory-utilization high", "--gpu-memory-utilization: 'high': must be a number"),
    ("serve llama-3.1-8b --gpu-memory-utilization nan", "--gpu-memory-utilization: nan: must be a finite number"),
    ("serve llama-3.1-8b --enable-lora=maybe", "--enable-lora: 'maybe': must be true or false"),
    (
        "serve llama-3.1-8b --enable-lora --max-loras 8 --max-cpu-loras 4",
        "--max-cpu-loras: 4: max_cpu_loras (4) must be at least max_loras (8)",
    ),
    (
        "serve llama-3.1-8b --enable-lora --max-lora-rank 24",
        "--max-lora-rank: 24: vLLM 0.20 allows: 1, 8, 16, 32, 64, 128, 256, 320, 512",
    ),
    (
        "serve llama-3.1-8b -pp 33",
        "--pipeline-parallel-size: 33: at most one stage for each of the 32 layers of llama-3.1-8b",
    ),
    (
        "serve llama-3.1-8b --quantization awq",
        "--quantization: 'awq': changes timing and is not modelled: only none",
    ),
    ("serve llama-3.1-8b -q fp8", "--quantization: 'fp8': changes timing and is not modelled: only none"),
    (
        "serve llama-3.1-8b --kv-cache-dtype fp8",
        "--kv-cache-dtype: 'fp8': changes timing and is not modelled: only auto or bfloat16",
    ),
    ("serve llama-3.1-8b -O3", "--optimization-level: '3': changes timing and is not modelled: only 2"),
    (
        "serve llama-3.1-8b --speculative-config '{}'",
        "--speculative-config: '{}': changes timing and is not modelled from flags: the acceptance rate is not a flag; "
        "set engine.speculative in a scenario file",
    ),
    (
        "serve llama-3.1-8b --performance-mode throughput",
        "--performance-mode: 'throughput': changes timing and is not modelled: give --max-num-seqs and "
        "--max-num-batched-tokens instead: only balanced",
    ),
    (
        "serve llama-3.1-8b --enable-expert-parallel",
        "--enable-expert-parallel: True: changes timing and is not modelled: leave it out",
    ),
    ("VLLM_USE_V1=0 vllm serve llama-3.1-8b", "VLLM_USE_V1: '0': only the V1 engine is modelled: only 1"),
    ("serve llama-3.1-8b --lora-modules a=b", "--lora-modules: ['a=b']: needs --enable-lora"),
    (
        "serve llama-3.1-8b --enable-lora --lora-modules a",
        '--lora-modules: \'a\': must be NAME=PATH or {"name": ..., "path": ...}',
    ),
    (
        "serve llama-3.1-8b --enable-lora --lora-modules '{\"name\": 1}'",
        '--lora-modules: \'{"name": 1}\': must be NAME=PATH or {"name": ..., "path": ...}',
    ),
    (
        "serve llama-3.1-8b --enable-lora --lora-modules a=x a=y",
        "--lora-modules: ['a=x', 'a=y']: a name is given twice",
    ),
]


@pytest.mark.parametrize(("arguments", "expected"), WRONG)
def test_wrong_arguments(arguments: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        scenario_from_vllm_args(arguments)
    assert str(caught.value) == f"<arguments>: {expected}"


def test_wrong_base() -> None:
    with pytest.raises(ConfigError, match="engine: 3: must be a mapping of keys to values"):
        scenario_from_vllm_args("serve llama-3.1-8b", {"engine": 3})


def test_tables_name_real_fields_and_do_not_overlap() -> None:
    for table in (flags.INTEGERS, flags.FLOATS, flags.SWITCHES):
        assert set(table.values()) <= set(VllmConfig.model_fields)
    groups = (
        flags.INTEGERS, flags.FLOATS, flags.SWITCHES, flags.LISTS, flags.NEUTRAL, flags.NEUTRAL_SWITCHES,
        flags.IGNORED, flags.IGNORED_SWITCHES,
    )  # fmt: skip
    names = [name for group in groups for name in group]
    assert len(names) == len(set(names))
