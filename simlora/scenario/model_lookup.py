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
    spec = builtin_model(name) or _from_path(name, folder)
    if spec.architecture not in rules.architectures:
        raise WrongValueError("model", name, f"vLLM {rules.version} does not serve {spec.architecture}")
    return replace(spec, has_lora_embeddings=spec.architecture in rules.embedding_architectures)


def _from_path(name: str, folder: Path) -> ModelSpec:
    try:
        path = folder / Path(name).expanduser()
        path = path / "config.json" if path.is_dir() else path
        exists = path.is_file()
    except (OSError, ValueError, RuntimeError):  # not a possible path
        exists = False
    if exists:
        return read_hf_config(path)
    if name.endswith(".json") or name.startswith((".", "/", "~")):
        raise WrongValueError("model", name, "no such file: the path of a Hugging Face config.json, or a built-in name")
    raise WrongValueError(
        "model", name, unknown_name(name, [*MODELS, *ALIASES], list(MODELS)) + ", or the path of a config.json"
    )
