"""What `--lora-modules` says of the adapters: how many, and their ranks where their adapter_config.json is at hand."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from simlora.errors import ARGUMENTS, ConfigError
from simlora.scenario.lora_modules import ALL_LINEAR, EMBEDDINGS


def adapters_from_modules(modules: list[str], default_rank: int) -> tuple[dict[str, Any], list[str]]:
    """The scenario's `adapters` section and notes.

    Args:
        modules: NAME=PATH, or JSON with name and path, as vLLM takes them.
        default_rank: rank of adapters whose adapter_config.json cannot be read here.

    Raises:
        ConfigError: malformed, or a name given twice.
    """
    paths = dict(_name_and_path(module) for module in modules)
    if len(paths) < len(modules):
        raise ConfigError(ARGUMENTS, "--lora-modules", modules, "a name is given twice")
    configs = [_read_config(path) for path in paths.values()]
    known = [config for config in configs if config]
    ranks = Counter(int(config["r"]) for config in known)
    notes = []
    if len(known) < len(configs):
        ranks[default_rank] += len(configs) - len(known)
        unknown = f"{len(configs) - len(known)} of {len(configs)} adapters"
        notes.append(f"{unknown}: no adapter_config.json, rank {default_rank} assumed")
    section: dict[str, Any] = {
        "count": len(configs),
        "ranks": {rank: count / len(configs) for rank, count in sorted(ranks.items())},
    }
    targets = [module for config in known for module in config.get("target_modules") or ()]
    if targets and all(module in ALL_LINEAR + EMBEDDINGS for module in targets):
        section["target_modules"] = list(dict.fromkeys(targets))
    return section, notes


def _name_and_path(module: str) -> tuple[str, str]:
    allowed = 'must be NAME=PATH or {"name": ..., "path": ...}'
    if module.startswith("{"):
        try:
            entry = json.loads(module)
            return str(entry["name"]), str(entry["path"])
        except (ValueError, KeyError, TypeError):
            raise ConfigError(ARGUMENTS, "--lora-modules", module, allowed) from None
    name, equals, path = module.partition("=")
    if not name or not equals or not path:
        raise ConfigError(ARGUMENTS, "--lora-modules", module, allowed)
    return name, path


def _read_config(path: str) -> dict[str, Any] | None:
    """The adapter's PEFT configuration, or None: the path may be a Hugging Face id, or on another machine."""
    try:
        config = json.loads((Path(path) / "adapter_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    usable = (
        isinstance(config, dict)
        and isinstance(config.get("r"), int)
        and isinstance(config.get("target_modules"), (list, str, type(None)))
    )
    if not usable:
        return None
    return {**config, "target_modules": None} if isinstance(config.get("target_modules"), str) else config
