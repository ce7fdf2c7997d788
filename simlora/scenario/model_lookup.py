"""From the `model` key to dimensions: a built-in name, or a Hugging Face config.json."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simlora.scenario.base import WrongValueError, unknown_name
from simlora.scenario.model import ALIASES, MODELS, ModelSpec, builtin_model

ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "MixtralForCausalLM",
    "GptOssForCausalLM",
)
_EXPERTS = {
    "Qwen3MoeForCausalLM": "num_experts",
    "MixtralForCausalLM": "num_local_experts",
    "GptOssForCausalLM": "num_local_experts",
}
_MXFP4_BYTES = 17 / 32
"""Bytes of one MXFP4 element: 4 bits, and one 8-bit scale for 32 elements (OCP Microscaling Formats 1.0)."""


@dataclass(frozen=True)
class ModelSupport:
    """Which models, and which modules of them, an engine serves with adapters."""

    served_by: str
    """The engine, for messages."""
    architectures: frozenset[str]
    embedding_architectures: frozenset[str]
    """Classes that list embed_tokens and lm_head as LoRA modules."""
    expert_lora: bool
    """LoRA on the experts of a mixture is wrapped."""


LLAMA_LIKE = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM"})
KNOWN_MODELS = ModelSupport(
    served_by="simlora",
    architectures=frozenset(ARCHITECTURES),
    embedding_architectures=LLAMA_LIKE | {"Qwen3ForCausalLM", "Qwen3MoeForCausalLM"},
    expert_lora=True,
)
"""All that is read here: what an engine serves unless it says otherwise."""


def find_model(name: str, folder: Path, support: ModelSupport) -> ModelSpec:
    """Dimensions of the model as the engine serves it.

    Args:
        name: built-in name, Hugging Face id of a built-in model, or path of a config.json or of its folder.
        folder: where relative paths start.

    Raises:
        WrongValueError: no such model, or an architecture that is not supported.
    """
    path = _config_path(name, folder)
    spec = read_hf_config(path) if path else builtin_model(name)
    if spec is None or (_is_path(name) and path is None):
        raise WrongValueError("model", name, _unknown(name))
    if spec.architecture not in support.architectures:
        raise WrongValueError("model", name, f"{support.served_by} does not serve {spec.architecture}")
    return replace(spec, has_lora_embeddings=spec.architecture in support.embedding_architectures)


def _is_path(name: str) -> bool:
    return name.endswith(".json") or name.startswith((".", "/", "~"))


def _config_path(name: str, folder: Path) -> Path | None:
    """The config.json that the name points to. A bare word is never a path: a folder must not hide a built-in model."""
    if not _is_path(name) and "/" not in name:
        return None
    try:
        path = folder / Path(name).expanduser()
        path = path / "config.json" if path.is_dir() else path
        return path if path.is_file() else None
    except (OSError, ValueError, RuntimeError):  # not a possible path
        return None


def _unknown(name: str) -> str:
    if _is_path(name):
        return "no such file: the path of a Hugging Face config.json, or a built-in name"
    return unknown_name(name, [*MODELS, *ALIASES], list(MODELS)) + ", or the path of a config.json"


def read_hf_config(path: Path) -> ModelSpec:
    """Dimensions from a config.json.

    Raises:
        WrongValueError: unreadable file, unknown architecture, missing or impossible dimensions, or a quantisation
            other than gpt-oss's MXFP4.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise WrongValueError("model", str(path), f"not a readable JSON file ({error})") from None
    if not isinstance(config, dict):
        raise WrongValueError("model", str(path), "must hold a JSON object")
    return _Reader(path, config).spec()


class _Reader:
    """Takes checked values out of one config."""

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        self.path, self.config = path, config

    def spec(self) -> ModelSpec:
        architecture = self._architecture()
        hidden, heads = self._int("hidden_size"), self._int("num_attention_heads")
        experts = self._int(_EXPERTS[architecture]) if architecture in _EXPERTS else 0
        gpt_oss = architecture == "GptOssForCausalLM"
        spec = ModelSpec(
            name=self.path.parent.name if self.path.name == "config.json" else self.path.stem,
            hidden_size=hidden,
            intermediate_size=self._int("intermediate_size"),
            num_hidden_layers=self._int("num_hidden_layers"),
            num_attention_heads=heads,
            num_key_value_heads=self._int("num_key_value_heads", heads),
            head_dim=self._int("head_dim", max(hidden // heads, 1)),
            vocab_size=self._int("vocab_size"),
            tie_word_embeddings=self.config.get("tie_word_embeddings") is True,
            max_position_embeddings=self._int("max_position_embeddings"),
            dtype_bytes=self._dtype_bytes(),
            num_experts=experts,
            num_experts_per_tok=self._int("num_experts_per_tok") if experts else 0,
            moe_intermediate_size=self._int("moe_intermediate_size", self._int("intermediate_size")) if experts else 0,
            qkv_bias=architecture == "Qwen2ForCausalLM" or self.config.get("attention_bias") is True,
            qk_norm=architecture.startswith("Qwen3"),
            moe_bias=gpt_oss,
            architecture=architecture,
        )
        return self._quantized(spec)

    def _architecture(self) -> str:
        found = self.config.get("architectures")
        name = found[0] if isinstance(found, list) and found else None
        if name not in ARCHITECTURES:
            raise WrongValueError(
                "model", str(self.path), f"architecture {name!r} is not supported: {', '.join(ARCHITECTURES)}"
            )
        return str(name)

    def _int(self, key: str, default: int | None = None) -> int:
        value = self.config.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 10**9:
            raise WrongValueError("model", str(self.path), f"{key} must be a whole number above 0, not {value!r}")
        return value

    def _dtype_bytes(self) -> int:
        name = self.config.get("dtype") or self.config.get("torch_dtype") or "bfloat16"
        if name not in ("bfloat16", "float16", "float32"):
            raise WrongValueError(
                "model", str(self.path), f"dtype {name!r} is not supported: bfloat16, float16, float32"
            )
        return 2  # float32 checkpoints are served in 16 bits (vLLM's --dtype auto)

    def _quantized(self, spec: ModelSpec) -> ModelSpec:

        quantization = self.config.get("quantization_config")
        if quantization is None:
            return spec
        method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
        if method != "mxfp4" or not spec.moe_bias:
            raise WrongValueError(
                "model", str(self.path), f"quantisation {method!r} is not modelled: only gpt-oss in mxfp4"
            )
        saved = spec.expert_parameters * (spec.dtype_bytes - _MXFP4_BYTES)
        return replace(spec, quantized_weight_bytes=round(spec.parameters * spec.dtype_bytes - saved))
