"""From the `model` key to dimensions: a built-in name, or a Hugging Face config.json."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from simlora.scenario.base import WrongValueError
from simlora.scenario.gpu import unknown_name
from simlora.scenario.hf_config import read_hf_config
from simlora.scenario.model_catalog import ALIASES, MODELS, builtin_model
from simlora.scenario.model_spec import ModelSpec
from simlora.scenario.versions import VersionRules


def find_model(name: str, folder: Path, rules: VersionRules) -> ModelSpec:
    """Dimensions of the model as that engine version serves it.

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
    if spec.architecture not in rules.architectures:
        raise WrongValueError("model", name, f"vLLM {rules.version} does not serve {spec.architecture}")
    return replace(spec, has_lora_embeddings=spec.architecture in rules.embedding_architectures)


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
