"""Splits a `vllm serve` command line into its model and its flags. Knows no flag's meaning, only its shape."""

from __future__ import annotations

import difflib
import shlex
from dataclasses import dataclass, field

from simlora.errors import ConfigError
from simlora.scenario import vllm_flags as flags
from simlora.scenario.messages import brief
from simlora.scenario.root import ARGUMENTS

_VALUES = frozenset({*flags.INTEGERS, *flags.FLOATS, *flags.NEUTRAL, *flags.IGNORED, "model"})
_SWITCHES = frozenset({*flags.SWITCHES, *flags.NEUTRAL_SWITCHES, *flags.IGNORED_SWITCHES})
_TRUTH = {"true": True, "1": True, "false": False, "0": False}


@dataclass
class Command:
    """A parsed command line."""

    model: str | None = None
    values: dict[str, str] = field(default_factory=dict)
    """Flag without dashes -> its value; the last one wins, as in vLLM."""
    switches: dict[str, bool] = field(default_factory=dict)
    lists: dict[str, list[str]] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)


def parse_command(arguments: str) -> Command:
    """Accepts `[ENV=value ...] [vllm] serve MODEL flags` and `python -m vllm.entrypoints.openai.api_server flags`.

    Raises:
        ConfigError: unbalanced quotes, unknown flag, missing or superfluous value.
    """
    try:
        tokens = shlex.split(arguments.replace("\\\n", " ").replace("\\\r\n", " "))
    except ValueError as error:
        raise ConfigError(ARGUMENTS, "vllm arguments", brief(arguments), f"cannot be split ({error})") from None
    command = Command()
    while tokens and "=" in tokens[0] and not tokens[0].startswith("-"):
        name, _, value = tokens.pop(0).partition("=")
        command.environment[name] = value
    tokens = _without_program(tokens)
    while tokens:
        token = tokens.pop(0)
        if token.startswith("-") and len(token) > 1:
            _take_flag(command, token, tokens)
        elif command.model is None and "model" not in command.values:
            command.model = token
        else:
            raise ConfigError(ARGUMENTS, "vllm arguments", token, "belongs to no flag, and the model is given already")
    command.model = command.values.pop("model", command.model)
    return command


def _without_program(tokens: list[str]) -> list[str]:
    if len(tokens) > 2 and tokens[1] == "-m":
        return tokens[3:]
    if tokens and tokens[0].rsplit("/", 1)[-1] == "vllm":
        tokens = tokens[1:]
    return tokens[1:] if tokens and tokens[0] == "serve" else tokens


def _take_flag(command: Command, token: str, tokens: list[str]) -> None:
    name, equals, value = token.lstrip("-").partition("=")
    name = name.replace("_", "-")
    name = flags.SHORT.get(name, name)
    if name.startswith("O") and name[1:].isdecimal():  # -O3
        name, equals, value = "optimization-level", "=", name[1:]
    if name in flags.LISTS:
        command.lists[name] = [value] if equals else []
        while tokens and not tokens[0].startswith("-"):
            command.lists[name].append(tokens.pop(0))
    elif name in _SWITCHES or name.removeprefix("no-") in _SWITCHES:
        if not equals and tokens and tokens[0].lower() in ("true", "false"):  # vLLM before 0.9 took a value here
            equals, value = "=", tokens.pop(0)
        if equals and value.lower() not in _TRUTH:
            raise ConfigError(ARGUMENTS, f"--{name}", value, "must be true or false")
        on = _TRUTH[value.lower()] if equals else True
        command.switches[name.removeprefix("no-")] = on if name in _SWITCHES else not on
    elif name in _VALUES:
        if not equals:
            if not tokens or tokens[0].startswith("--"):
                raise ConfigError(ARGUMENTS, f"--{name}", None, "needs a value")
            value = tokens.pop(0)
        command.values[name] = value
    else:
        near = difflib.get_close_matches(name, [*_VALUES, *_SWITCHES, *flags.LISTS], n=1)
        hint = f"; did you mean --{near[0]}?" if near else ""
        raise ConfigError(ARGUMENTS, token.split("=")[0], value or None, f"not a vLLM flag that simlora knows{hint}")
