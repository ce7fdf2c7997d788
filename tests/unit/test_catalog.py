"""Built-in models against published totals, Hugging Face configs, and the GPU catalogue."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simlora.errors import ConfigError
from simlora.scenario.gpu import GPUS, HOST_LINKS, builtin_gpu
from simlora.scenario.load import scenario_from_dict
from simlora.scenario.model import MODELS, ModelSpec, builtin_model

PUBLISHED = {
    # Parameters in the safetensors metadata of the checkpoint on Hugging Face.
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3-8b": 8_030_261_248,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.3-70b": 70_553_706_496,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "mistral-7b": 7_248_023_552,
    "mixtral-8x7b": 46_702_792_704,
    "gpt-oss-20b": 20_914_757_184,  # model card: 21B
}
KV_BYTES = {  # 2 x layers x KV heads x head size x 2 bytes, worked out by hand
    "llama-3.1-8b": 131_072,
    "llama-3.1-70b": 327_680,
    "llama-2-7b": 524_288,
    "qwen2.5-7b": 57_344,
    "qwen3-30b-a3b": 98_304,
}


def test_every_model_has_a_published_total() -> None:
    assert set(PUBLISHED) == set(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_parameters_match_the_published_total(name: str) -> None:
    assert MODELS[name].parameters == pytest.approx(PUBLISHED[name], rel=0.005)


@pytest.mark.parametrize("name", sorted(set(PUBLISHED) - {"gpt-oss-20b"}))
def test_weights_are_two_bytes_each(name: str) -> None:
    assert MODELS[name].weight_bytes == 2 * MODELS[name].parameters


@pytest.mark.parametrize(("name", "expected"), KV_BYTES.items())
def test_kv_bytes_per_token(name: str, expected: int) -> None:
    assert MODELS[name].kv_bytes_per_token == expected


@pytest.mark.parametrize(
    ("name", "billions"), [("mixtral-8x7b", 12.9), ("qwen3-30b-a3b", 3.35), ("llama-3.1-8b", 8.03)]
)
def test_active_parameters(name: str, billions: float) -> None:
    assert MODELS[name].active_parameters / 1e9 == pytest.approx(billions, rel=0.01)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Llama-3.1-8B", "llama-3.1-8b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Meta-Llama-3.1-70B-Instruct", "llama-3.1-70b"),
        ("meta-llama/Meta-Llama-3-8B", "llama-3-8b"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.3-70b"),
        ("meta-llama/Llama-3.2-1B-Instruct", "llama-3.2-1b"),
        ("meta-llama/Llama-2-13b-chat-hf", "llama-2-13b"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("openai/gpt-oss-20b", "gpt-oss-20b"),
    ],
)
def test_hugging_face_ids(text: str, name: str) -> None:
    spec = builtin_model(text)
    assert spec is not None
    assert spec.name == name


@pytest.mark.parametrize("name", MODELS)
def test_the_models_own_hugging_face_id_finds_it(name: str) -> None:
    assert builtin_model(MODELS[name].hugging_face_id) == MODELS[name]


def test_other_models_are_not_found() -> None:
    assert builtin_model("google/gemma-2-9b") is None


def config_of(spec: ModelSpec) -> dict[str, Any]:
    """The config.json that a checkpoint of these dimensions has."""
    config: dict[str, Any] = {
        "architectures": [spec.architecture],
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_hidden_layers,
        "num_attention_heads": spec.num_attention_heads,
        "num_key_value_heads": spec.num_key_value_heads,
        "head_dim": spec.head_dim,
        "vocab_size": spec.vocab_size,
        "tie_word_embeddings": spec.tie_word_embeddings,
        "max_position_embeddings": spec.max_position_embeddings,
        "torch_dtype": "bfloat16",
    }
    if spec.is_moe:
        key = "num_experts" if spec.architecture == "Qwen3MoeForCausalLM" else "num_local_experts"
        config |= {key: spec.num_experts, "num_experts_per_tok": spec.num_experts_per_tok}
    if spec.architecture == "Qwen3MoeForCausalLM":
        config["moe_intermediate_size"] = spec.moe_intermediate_size
    if spec.architecture == "GptOssForCausalLM":
        config |= {"attention_bias": True, "quantization_config": {"quant_method": "mxfp4"}}
    return config


def load_config(folder: Path, config: object) -> ModelSpec:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return scenario_from_dict({"model": str(folder)}).model_spec


@pytest.mark.parametrize("name", MODELS)
def test_hugging_face_config_gives_the_same_dimensions(name: str, tmp_path: Path) -> None:
    spec = load_config(tmp_path / "model", config_of(MODELS[name]))
    for field in ("parameters", "kv_bytes_per_token", "active_parameters", "has_lora_embeddings", "vocab_size"):
        assert getattr(spec, field) == getattr(MODELS[name], field), field
    assert spec.weight_bytes == pytest.approx(MODELS[name].weight_bytes, rel=1e-3)
    assert spec.name == "model"


def test_config_may_be_named_by_file_relative_to_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "tiny.json").write_text(json.dumps(config_of(MODELS["llama-3.2-1b"])))
    scenario = scenario_from_dict({"model": "tiny.json"}, folder=tmp_path)
    assert scenario.model_spec.name == "tiny"
    assert scenario.model_spec.parameters == PUBLISHED["llama-3.2-1b"]


def test_a_folder_named_like_a_builtin_model_is_read_as_a_path(tmp_path: Path) -> None:
    config = {**config_of(MODELS["llama-3.1-8b"]), "num_hidden_layers": 2}
    (tmp_path / "org" / "llama-3.1-8b").mkdir(parents=True)
    (tmp_path / "org" / "llama-3.1-8b" / "config.json").write_text(json.dumps(config))
    for name, layers in (("org/llama-3.1-8b", 2), ("./org/llama-3.1-8b", 2), ("llama-3.1-8b", 32)):
        assert scenario_from_dict({"model": name}, folder=tmp_path).model_spec.num_hidden_layers == layers
    with pytest.raises(ConfigError, match="no such file"):
        scenario_from_dict({"model": "./other/llama-3.1-8b"}, folder=tmp_path)


def test_head_dim_and_kv_heads_have_hugging_faces_defaults(tmp_path: Path) -> None:
    config = config_of(MODELS["llama-2-7b"])
    del config["head_dim"], config["num_key_value_heads"]
    assert load_config(tmp_path, config).parameters == PUBLISHED["llama-2-7b"]


@pytest.mark.parametrize(
    ("change", "allowed"),
    [
        (
            {"architectures": ["GemmaForCausalLM"]},
            "architecture 'GemmaForCausalLM' is not supported: LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, "
            "Qwen3ForCausalLM, Qwen3MoeForCausalLM, MixtralForCausalLM, GptOssForCausalLM",
        ),
        ({"hidden_size": "big"}, "hidden_size must be a whole number above 0, not 'big'"),
        ({"num_hidden_layers": None}, "num_hidden_layers must be a whole number above 0, not None"),
        ({"vocab_size": 0}, "vocab_size must be a whole number above 0, not 0"),
        ({"torch_dtype": "int8"}, "dtype 'int8' is not supported: bfloat16, float16, float32"),
        (
            {"quantization_config": {"quant_method": "awq"}},
            "quantisation 'awq' is not modelled: only gpt-oss in mxfp4",
        ),
    ],
)
def test_bad_config(change: dict[str, Any], allowed: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path, {**config_of(MODELS["llama-3.1-8b"]), **change})
    assert (caught.value.key, caught.value.allowed) == ("model", allowed)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 5000])
def test_config_that_is_no_json_object(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError) as caught:
        scenario_from_dict({"model": str(tmp_path)})
    assert caught.value.key == "model"


def test_vocabulary_above_the_lora_limit(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="its vocabulary of 262144 exceeds the 258048 that vLLM's LoRA supports"):
        load_config(tmp_path, {**config_of(MODELS["llama-3.1-8b"]), "vocab_size": 262_144})
    config = {**config_of(MODELS["qwen2.5-7b"]), "vocab_size": 262_144}  # has no LoRA on lm_head
    assert load_config(tmp_path, config).vocab_size == 262_144


def test_lora_embeddings_depend_on_the_version() -> None:
    for name, old, new in (("qwen3-8b", False, True), ("llama-3.1-8b", True, True), ("qwen2.5-7b", False, False)):
        specs = [scenario_from_dict({"model": name, "engine": {"version": v}}).model_spec for v in ("0.8.5", "0.20")]
        assert [spec.has_lora_embeddings for spec in specs] == [old, new]


@pytest.mark.parametrize("name", GPUS)
def test_gpu_values_are_plausible_and_sourced(name: str) -> None:
    gpu = GPUS[name]
    assert 20 * 2**30 < gpu.memory_bytes < 200 * 2**30
    assert 0.25e12 < gpu.hbm_bytes_per_s < 10e12
    assert 50e12 < gpu.bf16_flops < 3e15
    assert gpu.host_link_bytes_per_s == HOST_LINKS[gpu.host_link]
    assert gpu.gpu_link_bytes_per_s >= 32e9
    assert gpu.sm_count > 50
    assert gpu.price_hour_usd > 0
    assert "price 20" in gpu.source


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("h200", "h200-141gb"),
        ("nvidia-h200", "h200-141gb"),
        ("NVIDIA H200", "h200-141gb"),
        ("H100", "h100-80gb"),
        ("NVIDIA L40S", "l40s"),
        ("RTX_4090", "rtx-4090"),
    ],
)
def test_gpu_aliases(alias: str, name: str) -> None:
    gpu = builtin_gpu(alias)
    assert gpu is not None
    assert gpu.name == name


def test_gpu_memory_is_what_the_driver_reports() -> None:
    assert GPUS["h200-141gb"].memory_bytes == 143_771 * 2**20
    assert GPUS["h100-80gb"].memory_bytes == 81_920 * 2**20
    assert GPUS["gh200"].host_link_bytes_per_s == 450e9


def test_gpu_overrides() -> None:
    gpu = {"name": "h100-80gb", "host_link": "pcie4", "memory_gib": 64, "hbm_gb_per_s": 2000}
    spec = scenario_from_dict({"model": "llama-3.1-8b", "gpu": gpu}).gpu_spec
    assert (spec.host_link, spec.host_link_bytes_per_s) == ("pcie4", 32e9)
    assert (spec.memory_bytes, spec.hbm_bytes_per_s) == (64 * 2**30, 2e12)
    assert spec.bf16_flops == GPUS["h100-80gb"].bf16_flops
