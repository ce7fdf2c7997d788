"""The model and the GPU of a recorded run, by the names and dimensions that scenarios use."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from simlora.errors import ConfigError
from simlora.scenario.gpu import GPUS, builtin_gpu
from simlora.scenario.model import builtin_model

DIMENSIONS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "tie_word_embeddings",
)
DEFAULT_ARCHITECTURE = "LlamaForCausalLM"
DEFAULT_CONTEXT_TOKENS = 131_072
"""Of a model that is not built in and whose recording names no context length: long enough for its requests."""

_VENDOR = re.compile(r"^(nvidia-|amd-|instinct-|geforce-)+")


def gpu_name(recorded: str, source: str) -> str:
    """The catalogue's name for what a driver calls a GPU: "NVIDIA H100 80GB HBM3" is h100-80gb.

    Raises:
        ConfigError: no GPU of the catalogue fits.
    """
    key = _VENDOR.sub("", "-".join(re.split(r"[\s_-]+", recorded.strip().lower())))
    parts = key.split("-")
    for length in range(len(parts), 0, -1):
        spec = builtin_gpu("-".join(parts[:length]))
        if spec is not None:
            return spec.name
    raise ConfigError(source, "gpu", recorded, f"one of {', '.join(GPUS)}, or name the nearest with gpu=")


def gpu_of(recorded: str | dict[str, Any], source: str) -> str | dict[str, Any]:
    """What a scenario's `gpu` should say: the catalogue's name, with the datasheet values that were recorded beside it.

    Raises:
        ConfigError: no GPU of the catalogue fits.
    """
    if isinstance(recorded, str):
        return gpu_name(recorded, source)
    return {**recorded, "name": gpu_name(recorded["name"], source)}


def model_name(name: str, dimensions: dict[str, Any] | None, folder: Path, source: str) -> str:
    """What a scenario's `model` should say: the built-in name, or the path of a config.json written to `folder`.

    A built-in name whose recorded dimensions differ is another model, and the recorded ones count.

    Raises:
        ConfigError: not a built-in model, and no dimensions were recorded.
    """
    spec = builtin_model(name)
    if spec is not None and all(
        dimensions is None or key not in dimensions or dimensions[key] == getattr(spec, key) for key in DIMENSIONS
    ):
        return spec.name
    if dimensions is None:
        raise ConfigError(source, "model_config", None, f"required, since {name!r} is not a built-in model")
    path = folder / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name).strip('-.') or 'model'}.json"
    path.write_text(json.dumps(_hf_config(dimensions)), encoding="utf-8")
    return str(path)


def _hf_config(dimensions: dict[str, Any]) -> dict[str, Any]:
    """The recorded dimensions in the layout of a Hugging Face config.json; simlora's own runs name some otherwise."""
    config = {key: value for key, value in dimensions.items() if value is not None}
    architecture = config.pop("architecture", DEFAULT_ARCHITECTURE)
    config.setdefault("architectures", [architecture])
    config.setdefault("max_position_embeddings", DEFAULT_CONTEXT_TOKENS)
    if "num_experts" in config:
        config.setdefault("num_local_experts", config["num_experts"])
    return config
