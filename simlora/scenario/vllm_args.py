"""From the flags of `vllm serve` to a scenario: the fastest way in for someone who runs a server already."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from simlora.errors import ConfigError
from simlora.scenario import vllm_flags as flags
from simlora.scenario.load import scenario_from_dict
from simlora.scenario.lora_paths import adapters_from_modules
from simlora.scenario.messages import brief
from simlora.scenario.root import ARGUMENTS, Scenario
from simlora.scenario.vllm_command import Command, parse_command

_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
_DEFAULT_RANK = 16
"""vLLM's default of --max-lora-rank."""


class FromVllmArgs(NamedTuple):
    """A scenario, and what a reader should know about how it came about."""

    scenario: Scenario
    notes: tuple[str, ...]


def scenario_from_vllm_args(
    arguments: str, base: Mapping[str, Any] | None = None, folder: Path | None = None
) -> FromVllmArgs:
    """The scenario of a server started with these flags.

    Args:
        arguments: e.g. "serve meta-llama/Llama-3.1-8B-Instruct --enable-lora --max-loras 8".
        base: sections that the flags do not cover (gpu, workload, engine.version, ...), in the YAML's form. Flags win.
        folder: where relative paths in base start.

    Raises:
        ConfigError: an unknown flag, a flag that changes timing and is not modelled, or a wrong value.
    """
    command = parse_command(arguments)
    if command.model is None:
        raise ConfigError(ARGUMENTS, "model", None, "required: serve MODEL")
    notes = _check_unmodelled(command)
    engine = _engine(command)
    data: dict[str, Any] = {**(base or {}), "model": command.model}
    data["engine"] = _merged(data, "engine", engine)
    if "lora-modules" in command.lists:
        if not engine["enable_lora"]:
            raise ConfigError(ARGUMENTS, "--lora-modules", command.lists["lora-modules"], "needs --enable-lora")
        section, more = adapters_from_modules(command.lists["lora-modules"], engine.get("max_lora_rank", _DEFAULT_RANK))
        data["adapters"] = _merged(data, "adapters", section)
        notes += more
    elif not engine["enable_lora"]:
        data.pop("adapters", None)
    try:
        return FromVllmArgs(scenario_from_dict(data, folder=folder), tuple(notes))
    except ConfigError as error:
        raise _with_flag(error, engine) from None


def _merged(data: Mapping[str, Any], key: str, section: Mapping[str, Any]) -> dict[str, Any]:
    below = data.get(key) or {}
    if not isinstance(below, Mapping):
        raise ConfigError(ARGUMENTS, key, brief(below), "must be a mapping of keys to values")
    return {**below, **section}


def _engine(command: Command) -> dict[str, Any]:
    """Fields of the engine section. LoRA is off unless --enable-lora says otherwise, as in vLLM."""
    engine: dict[str, Any] = {"enable_lora": False}
    for name, value in command.values.items():
        if name in flags.INTEGERS:
            if name == "max-model-len" and value in ("auto", "-1"):
                continue
            engine[flags.INTEGERS[name]] = _integer(name, value)
        elif name in flags.FLOATS:
            engine[flags.FLOATS[name]] = _number(name, value)
    for name, on in command.switches.items():
        if name in flags.SWITCHES:
            engine[flags.SWITCHES[name]] = on
    if "lora-target-modules" in command.lists:
        engine["lora_target_modules"] = command.lists["lora-target-modules"]
    return engine


def _check_unmodelled(command: Command) -> list[str]:
    """Refuses what would change timing; returns notes on what is ignored."""
    for name, value in command.values.items():
        if name in flags.NEUTRAL and value.lower() not in flags.NEUTRAL[name]:
            neutral = flags.NEUTRAL[name]
            only = f": only {' or '.join(neutral)}" if neutral else ""
            raise ConfigError(ARGUMENTS, f"--{name}", value, f"changes timing and is not modelled{_hint(name)}{only}")
    for name, on in command.switches.items():
        if name in flags.NEUTRAL_SWITCHES and on:
            raise ConfigError(ARGUMENTS, f"--{name}", True, "changes timing and is not modelled: leave it out")
    notes = []
    for name, value in command.environment.items():
        neutral_value, why = flags.ENVIRONMENT.get(name, (value, ""))
        if value != neutral_value:
            raise ConfigError(ARGUMENTS, name, value, f"{why}: only {neutral_value}")
        notes.append(f"{name}={value}: ignored")
    ignored = sorted(
        {name for name in command.values if name in flags.IGNORED or name in flags.NEUTRAL}
        | {name for name in command.switches if name in flags.IGNORED_SWITCHES or name in flags.NEUTRAL_SWITCHES}
    )
    return [*notes, *(f"--{name}: does not matter to timing, ignored" for name in ignored)]


def _hint(name: str) -> str:
    if name.startswith(("speculative", "num-speculative")):
        return " from flags: the acceptance rate is not a flag; set engine.speculative in a scenario file"
    if name == "performance-mode":
        return ": give --max-num-seqs and --max-num-batched-tokens instead"
    return ""


def _integer(name: str, text: str) -> int:
    match = re.fullmatch(r"(\d+)([kKmMgG]?)|(\d+\.\d+)([kmg])", text.strip())
    if not match:
        raise ConfigError(ARGUMENTS, f"--{name}", text, "must be a whole number, as 8192, 8k (8,000) or 8K (8,192)")
    if match[1]:
        return int(match[1]) * _SUFFIXES.get(match[2], 1)
    return int(float(match[3]) * _SUFFIXES[match[4]])


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(ARGUMENTS, f"--{name}", text, "must be a number") from None


def _with_flag(error: ConfigError, engine: Mapping[str, Any]) -> ConfigError:
    """The same error with the flag's name where a flag caused it."""
    field = error.key.removeprefix("engine.").split(".")[0]
    if not error.key.startswith("engine.") or field not in engine:
        return error
    return ConfigError(error.source, f"--{field.replace('_', '-')}", error.value, error.allowed)
