"""From the command line of `vllm serve` to a scenario: the fastest way in for someone who runs a server already.

First what simlora makes of each flag (names without the leading dashes, with hyphens; source: vLLM's EngineArgs and
API-server flags, 0.8.5 and 0.20), then the command line split into its model and flags, then the scenario.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from simlora.errors import ARGUMENTS, ConfigError
from simlora.scenario.base import brief
from simlora.scenario.load import scenario_from_dict
from simlora.scenario.lora_paths import adapters_from_modules
from simlora.scenario.root import Scenario

INTEGERS = MappingProxyType(
    {
        "tensor-parallel-size": "tensor_parallel_size",
        "tp": "tensor_parallel_size",
        "pipeline-parallel-size": "pipeline_parallel_size",
        "pp": "pipeline_parallel_size",
        "max-loras": "max_loras",
        "max-lora-rank": "max_lora_rank",
        "max-cpu-loras": "max_cpu_loras",
        "max-num-seqs": "max_num_seqs",
        "max-num-batched-tokens": "max_num_batched_tokens",
        "max-model-len": "max_model_len",
        "block-size": "block_size",
        "num-gpu-blocks-override": "num_gpu_blocks_override",
    }
)
"""Flag -> field of the engine. Whole numbers, also as 8k (8,000) or 8K (8,192)."""

FLOATS = MappingProxyType({"gpu-memory-utilization": "gpu_memory_utilization"})

SWITCHES = MappingProxyType(
    {
        "enable-lora": "enable_lora",
        "enforce-eager": "enforce_eager",
        "fully-sharded-loras": "fully_sharded_loras",
        "specialize-active-lora": "specialize_active_lora",
        "enable-chunked-prefill": "enable_chunked_prefill",
        "enable-prefix-caching": "enable_prefix_caching",
        "async-scheduling": "async_scheduling",
    }
)
"""Flag -> field; --no-FLAG sets it to false."""

LISTS = frozenset({"lora-modules", "lora-target-modules"})
"""Flags that take all values up to the next flag."""

NEUTRAL = MappingProxyType(
    {
        "quantization": ("none",),
        "kv-cache-dtype": ("auto", "bfloat16"),
        "dtype": ("auto", "bfloat16", "float16", "half"),
        "lora-dtype": ("auto", "bfloat16", "float16"),
        "data-parallel-size": ("1",),
        "cpu-offload-gb": ("0",),
        "scheduling-policy": ("fcfs",),
        "scheduler-delay-factor": ("0", "0.0"),
        "performance-mode": ("balanced",),
        "max-num-partial-prefills": ("1",),
        "long-prefill-token-threshold": ("0",),
        "stream-interval": ("1",),
        "api-server-count": ("1",),
        "num-scheduler-steps": ("1",),
        "decode-context-parallel-size": ("1",),
        "device": ("auto", "cuda"),
        "optimization-level": ("2",),
        "kv-cache-memory-bytes": (),
        "compilation-config": (),
        "cudagraph-capture-sizes": (),
        "max-cudagraph-capture-size": (),
        "attention-backend": (),
        "speculative-config": (),
        "speculative-model": (),
        "num-speculative-tokens": (),
        "kv-transfer-config": (),
        "kv-offloading-size": (),
        "hf-overrides": (),
        "rope-scaling": (),
        "rope-theta": (),
        "config": (),
        "scheduler-cls": (),
        "num-lookahead-slots": ("0",),
        "preemption-mode": ("recompute",),
        "max-seq-len-to-capture": (),
        "additional-config": (),
        "default-mm-loras": (),
        "qlora-adapter-name-or-path": (),
    }
)
"""Flags that change timing and are not modelled: only these values, which change nothing, are accepted."""

NEUTRAL_SWITCHES = frozenset(
    {
        "enable-expert-parallel",
        "enable-eplb",
        "enable-dbo",
        "disable-sliding-window",
        "disable-cascade-attn",
        "disable-custom-all-reduce",
        "enable-lora-bias",
        "enable-tower-connector-lora",
        "calculate-kv-scales",
        "disable-hybrid-kv-cache-manager",
        "disable-chunked-mm-input",
    }
)
"""Switches that change timing and are not modelled: refused when on."""

IGNORED = frozenset(
    {
        "host", "port", "uds", "api-key", "served-model-name", "chat-template", "chat-template-content-format",
        "tokenizer", "tokenizer-mode", "tokenizer-revision", "revision", "code-revision", "hf-config-path",
        "hf-token", "config-format", "download-dir", "load-format", "model-loader-extra-config", "seed",
        "uvicorn-log-level", "tool-call-parser", "tool-parser-plugin", "reasoning-parser", "response-role",
        "allowed-origins", "allowed-methods", "allowed-headers", "allowed-local-media-path", "root-path",
        "middleware", "ssl-keyfile", "ssl-certfile", "ssl-ca-certs", "ssl-cert-reqs", "generation-config",
        "override-generation-config", "max-logprobs", "logprobs-mode", "guided-decoding-backend",
        "structured-outputs-config", "max-log-len", "distributed-executor-backend", "swap-space",
        "otlp-traces-endpoint", "collect-detailed-traces", "lora-extra-vocab-size", "long-lora-scaling-factors",
        "limit-mm-per-prompt", "mm-processor-kwargs", "prefix-caching-hash-algo",
        "max-parallel-loading-workers", "ray-workers-use-nsight", "runner", "task", "convert", "model-impl",
        "ignore-patterns", "logits-processor-pattern", "prompt-adapter", "h11-max-incomplete-event-size",
        "h11-max-header-count", "shutdown-timeout",
    }
)  # fmt: skip
"""Flags with a value that do not matter to timing."""

IGNORED_SWITCHES = frozenset(
    {
        "trust-remote-code", "disable-log-requests", "enable-log-requests", "disable-log-stats", "enable-log-outputs",
        "disable-uvicorn-access-log", "disable-fastapi-docs", "enable-auto-tool-choice", "enable-reasoning",
        "allow-credentials", "enable-ssl-refresh", "enable-request-id-headers", "return-tokens-as-token-ids",
        "disable-frontend-multiprocessing", "enable-prompt-tokens-details", "enable-server-load-tracking",
        "enable-force-include-usage", "use-v2-block-manager", "enable-sleep-mode", "use-tqdm-on-load", "headless",
        "enable-tokenizer-info-endpoint", "exclude-tools-when-tool-choice-none", "skip-tokenizer-init",
        "show-hidden-metrics-for-version", "language-model-only", "aggregate-engine-logging",
    }
)  # fmt: skip
"""Switches that do not matter to timing."""

SHORT = MappingProxyType(
    {
        "q": "quantization",
        "O": "optimization-level",
        "cc": "compilation-config",
        "dp": "data-parallel-size",
        "asc": "api-server-count",
        "dcp": "decode-context-parallel-size",
        "ep": "enable-expert-parallel",
    }
)
"""Short spellings other than those above."""

ENVIRONMENT = MappingProxyType(
    {
        "VLLM_USE_V1": ("1", "only the V1 engine is modelled"),
        "VLLM_LORA_ENABLE_DUAL_STREAM": ("0", "LoRA on a second stream is not modelled"),
    }
)
"""Environment variable -> (value that changes nothing, why others are refused)."""


_VALUES = frozenset({*INTEGERS, *FLOATS, *NEUTRAL, *IGNORED, "model"})
_SWITCHES = frozenset({*SWITCHES, *NEUTRAL_SWITCHES, *IGNORED_SWITCHES})
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
    name = SHORT.get(name, name)
    if name.startswith("O") and name[1:].isdecimal():  # -O3
        name, equals, value = "optimization-level", "=", name[1:]
    if name in LISTS:
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
        near = difflib.get_close_matches(name, [*_VALUES, *_SWITCHES, *LISTS], n=1)
        hint = f"; did you mean --{near[0]}?" if near else ""
        raise ConfigError(ARGUMENTS, token.split("=")[0], value or None, f"not a vLLM flag that simlora knows{hint}")


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
        if name in INTEGERS:
            if name == "max-model-len" and value in ("auto", "-1"):
                continue
            engine[INTEGERS[name]] = _integer(name, value)
        elif name in FLOATS:
            engine[FLOATS[name]] = _number(name, value)
    for name, on in command.switches.items():
        if name in SWITCHES:
            engine[SWITCHES[name]] = on
    if "lora-target-modules" in command.lists:
        engine["lora_target_modules"] = command.lists["lora-target-modules"]
    return engine


def _check_unmodelled(command: Command) -> list[str]:
    """Refuses what would change timing; returns notes on what is ignored."""
    for name, value in command.values.items():
        if name in NEUTRAL and value.lower() not in NEUTRAL[name]:
            neutral = NEUTRAL[name]
            only = f": only {' or '.join(neutral)}" if neutral else ""
            raise ConfigError(ARGUMENTS, f"--{name}", value, f"changes timing and is not modelled{_hint(name)}{only}")
    for name, on in command.switches.items():
        if name in NEUTRAL_SWITCHES and on:
            raise ConfigError(ARGUMENTS, f"--{name}", True, "changes timing and is not modelled: leave it out")
    notes = []
    for name, value in command.environment.items():
        neutral_value, why = ENVIRONMENT.get(name, (value, ""))
        if value != neutral_value:
            raise ConfigError(ARGUMENTS, name, value, f"{why}: only {neutral_value}")
        notes.append(f"{name}={value}: ignored")
    ignored = sorted(
        {name for name in command.values if name in IGNORED or name in NEUTRAL}
        | {name for name in command.switches if name in IGNORED_SWITCHES or name in NEUTRAL_SWITCHES}
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
