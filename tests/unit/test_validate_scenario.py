"""From a recorded run to a scenario: flags, limits, model, GPU, residents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from validate_runs import ROWS, RUN, write_run

from simlora.errors import ConfigError
from simlora.runs.recorded import read_recorded_run
from simlora.scenario.root import Scenario
from simlora.validate.replay import Replay, replays, spread
from simlora.validate.scenario_of_run import ReplayOptions, gpu_name, scenario_of_run, target_modules


def scenario(tmp_path: Path, changes: dict[str, Any] | None = None, **options: Any) -> Scenario:
    recorded = read_recorded_run(write_run(tmp_path / "run", changes))
    return scenario_of_run(recorded, recorded.ranks, ReplayOptions(**options))


def replay(tmp_path: Path, changes: dict[str, Any] | None = None, rows: tuple[str, ...] = ROWS) -> list[Replay]:
    return list(replays(read_recorded_run(write_run(tmp_path / "run", changes, rows)), ReplayOptions()))


def test_flags_and_resolved_limits(tmp_path: Path) -> None:
    made = scenario(tmp_path)
    engine = made.engine
    assert (engine.version, engine.enable_lora, engine.max_loras, engine.max_cpu_loras) == ("0.20", True, 4, 8)
    assert (engine.max_num_seqs, engine.max_num_batched_tokens) == (256, 2048)
    assert engine.num_gpu_blocks_override == 50000
    assert (engine.async_scheduling, engine.enable_prefix_caching, engine.endpoint) == (True, False, "in-process")
    assert made.adapters.count == 2
    assert made.adapters.ranks == {8: 0.5, 16: 0.5}
    assert made.gpu_spec.name == "h200-141gb"
    assert made.model_spec.name == "llama-3.1-8b"
    assert made.source.endswith("run.json")


def test_a_gpu_with_other_datasheet_values(tmp_path: Path) -> None:
    made = scenario(tmp_path, {"gpu": {"name": "NVIDIA H200", "hbm_gb_per_s": 4000.0, "bf16_tflops": 800.0}})
    assert made.gpu_spec.name == "h200-141gb"
    assert (made.gpu_spec.hbm_bytes_per_s, made.gpu_spec.bf16_flops) == (4e12, 8e14)
    assert scenario(tmp_path, {"gpu": {"name": "h200", "bf16_tflops": 800.0}}, gpu="l4").gpu_spec.name == "l4"
    for wrong in ({"hbm_gb_per_s": 4000.0}, {"name": ""}, "", {"name": "h200", "speed": 3}):
        with pytest.raises(ConfigError, match="gpu"):
            scenario(tmp_path, {"gpu": wrong})


def test_a_server_without_the_flag_has_lora_off(tmp_path: Path) -> None:
    rows = tuple(row for row in ROWS if ",0,0," in row)
    recorded = read_recorded_run(write_run(tmp_path / "run", {"engine": {}, "initial_adapters": None}, rows))
    assert not scenario_of_run(recorded, recorded.ranks, ReplayOptions()).engine.enable_lora


def test_a_small_cache_does_not_need_the_models_context(tmp_path: Path) -> None:
    made = scenario(tmp_path, {"resolved": {**RUN["resolved"], "num_gpu_blocks": 100}})
    assert made.engine.max_model_len == 320, "the longest request"
    made = scenario(tmp_path, {"engine": {**RUN["engine"], "max_model_len": 1000}})
    assert made.engine.max_model_len == 1000


def test_flags_that_do_not_matter_are_dropped_and_others_refused(tmp_path: Path) -> None:
    neutral = {"load_format": "dummy", "kv_cache_dtype": "auto", "seed": 0, "enable_eplb": False}
    assert scenario(tmp_path, {"engine": {**RUN["engine"], **neutral}}).engine.max_loras == 4
    with pytest.raises(ConfigError) as caught:
        scenario(tmp_path, {"engine": {**RUN["engine"], "kv_cache_dtype": "fp8"}})
    assert caught.value.key == "engine.kv_cache_dtype"
    with pytest.raises(ConfigError) as caught:
        scenario(tmp_path, {"engine": {**RUN["engine"], "max_loras": "many"}})
    assert caught.value.key == "engine.max_loras"


def test_a_model_that_is_not_built_in(tmp_path: Path) -> None:
    dimensions = {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 1024,
        "head_dim": 64,
    }
    spec = scenario(tmp_path, {"model": "my/tiny", "model_config": dimensions}).model_spec
    assert (spec.name, spec.hidden_size, spec.num_hidden_layers) == ("my-tiny", 256, 2)
    with pytest.raises(ConfigError, match="model_config"):
        scenario(tmp_path, {"model": "my/tiny"})


def test_recorded_dimensions_count_more_than_a_built_in_name(tmp_path: Path) -> None:
    built_in = {"hidden_size": 4096, "vocab_size": 128256}
    assert scenario(tmp_path, {"model_config": built_in}).model_spec.max_position_embeddings == 131072
    other = {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    }
    assert scenario(tmp_path, {"model_config": other}).model_spec.num_hidden_layers == 16


@pytest.mark.parametrize(
    ("recorded", "name"),
    [
        ("nvidia-h200", "h200-141gb"),
        ("NVIDIA H200", "h200-141gb"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
        ("h100-64gb", "h100-64gb"),
    ],
)
def test_gpu_names(recorded: str, name: str) -> None:
    assert gpu_name(recorded, "run.json") == name


def test_an_unknown_gpu(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="gpu"):
        scenario(tmp_path, {"gpu": "cpu"})
    assert scenario(tmp_path, {"gpu": "cpu"}, gpu="l4").gpu_spec.name == "l4"


def test_target_modules() -> None:
    every = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    assert target_modules("q,k,v,o,gate,up,down", "run.json") == every
    assert target_modules(["q_proj", "lm_head"], "run.json") == ["q_proj", "lm_head"]
    assert target_modules(None, "run.json") is None
    with pytest.raises(ConfigError, match="adapter_target_modules"):
        target_modules("q,router", "run.json")


def test_the_others_stand_evenly_among_the_listed() -> None:
    assert spread([1, 2], [7, 8, 9, 10]) == [7, 8, 1, 9, 10, 2]
    assert spread([], [7, 8]) == [7, 8]
    assert spread([1, 2], []) == [1, 2]
    for listed, others in ((3, 7), (5, 2), (8, 24), (1, 1)):
        merged = spread(range(listed), range(100, 100 + others))
        assert sorted(merged) == [*range(listed), *range(100, 100 + others)]
        assert [item for item in merged if item < 100] == list(range(listed))


def test_residents_get_numbers_of_their_own(tmp_path: Path) -> None:
    (made,) = replay(tmp_path)
    # Two others in host memory, the newer one in a slot.
    assert made.start.initial.host == (3, 1, 4, 2)
    assert made.start.initial.gpu == (4, 2)
    assert made.adapters.count == 4
    assert made.adapters.probability[3:].sum() == 0
    assert made.scenario.adapters.count == 4


def test_what_is_in_a_slot_is_in_host_memory(tmp_path: Path) -> None:
    (made,) = replay(tmp_path, {"initial_adapters": {"gpu": [1], "host": [2], "gpu_others": 1}})
    assert (made.start.initial.gpu, made.start.initial.host) == ((3, 1), (3, 2, 1))
    assert made.simulate().requests.load_tier.tolist() == [1, 0, 0]


def test_residents_that_no_request_uses_may_be_listed(tmp_path: Path) -> None:
    (made,) = replay(tmp_path, {"initial_adapters": {"gpu": [5], "host": [5, 1]}})
    assert (made.start.initial.host, made.adapters.count) == ((5, 1), 5)
    rows = tuple(row.replace(",1,16,", ",sql,16,").replace(",2,8,", ",chat,8,") for row in ROWS)
    (made,) = replay(tmp_path, {"initial_adapters": {"gpu": [], "host": ["old", "sql"]}}, rows)
    assert (made.start.initial.host, made.adapters.names) == ((3, 2), ("chat", "sql", "old"))


def test_unknown_residents_are_tried_both_ways(tmp_path: Path) -> None:
    cold, warm = replay(tmp_path, {"initial_adapters": None})
    assert (cold.start.label, cold.start.initial.host) == ("cold", ())
    assert (warm.start.label, set(warm.start.initial.host), warm.start.initial.gpu) == ("all-host", {1, 2}, ())


def test_without_adapters_residents_do_not_matter(tmp_path: Path) -> None:
    rows = tuple(row for row in ROWS if ",0,0," in row)
    (made,) = replay(tmp_path, {"initial_adapters": None}, rows)
    assert made.start.label == "recorded"


@pytest.mark.parametrize(
    ("residents", "key"),
    [
        ({"gpu": [], "host": [0]}, "initial_adapters.host"),
        ({"gpu": [], "host": ["sql"]}, "initial_adapters.host"),
        ({"gpu": [], "host": [1, 1]}, "initial_adapters.host"),
        ({"gpu": [1], "host": [1], "gpu_others": 4, "host_others": 4}, "initial_adapters.gpu"),
        ({"gpu": [], "host": [1], "host_others": 8}, "initial_adapters.host"),
    ],
)
def test_impossible_residents(tmp_path: Path, residents: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        replay(tmp_path, {"initial_adapters": residents})
    assert caught.value.key == key


def test_a_replay_keeps_the_recorded_requests(tmp_path: Path) -> None:
    (made,) = replay(tmp_path)
    log = made.simulate()
    assert log.requests.arrival_s.tolist() == [0.05, 0.1, 0.3]
    assert log.requests.prompt_tokens.tolist() == [50, 100, 300]
    assert log.requests.rank.tolist() == [8, 16, 0]
    assert log.requests.load_tier.tolist() == [0, 1, 0], "2 was in a slot, 1 in host memory"
    assert not np.isnan(log.requests.last_token_s).any()
