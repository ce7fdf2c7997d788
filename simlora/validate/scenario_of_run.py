"""A recorded run as a scenario: the server's own flags, the limits that it resolved, its model and its GPU."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from simlora.errors import ConfigError
from simlora.latency.store import shipped
from simlora.runs import SERVER
from simlora.runs.recorded import RecordedRun
from simlora.runs.run_file import RunFile
from simlora.scenario import vllm_args
from simlora.scenario.engines import DEFAULT_KIND, ENGINES, engine_config
from simlora.scenario.gpu import GPUS, builtin_gpu
from simlora.scenario.load import scenario_from_dict
from simlora.scenario.lora_modules import ALL_LINEAR, EMBEDDINGS
from simlora.scenario.model import builtin_model
from simlora.scenario.root import Scenario


@dataclass(frozen=True)
class ReplayOptions:
    """None: what the run says, or the nearest there is."""

    calibration: str | None = None
    """Name of a shipped calibration, or path of one."""
    gpu: str | None = None
    """The catalogue's name of the GPU."""


HOST_GIB = 1_000_000.0
"""The recorded server's host cache fitted, whatever its host's memory was."""

_RESOLVED = {
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "max_model_len": "max_model_len",
    "num_gpu_blocks": "num_gpu_blocks_override",
    "block_size": "block_size",
    "async_scheduling": "async_scheduling",
    "chunked_prefill": "enable_chunked_prefill",
}
"""Key of run.json's `resolved` -> field of the scenario's engine."""


def scenario_of_run(recorded: RecordedRun, ranks: npt.NDArray[np.int32], options: ReplayOptions) -> Scenario:
    """The scenario that a replay of the run simulates.

    Args:
        ranks: of adapters 1, 2, ...: those of the requests, and any others that take part.

    Raises:
        ConfigError: a flag that is not modelled, an unknown GPU or model, or limits that contradict each other.
    """
    run = recorded.run
    with TemporaryDirectory() as folder:
        data: dict[str, Any] = {
            "name": recorded.name[:200],
            "model": model_name(run.model, run.dimensions, Path(folder), recorded.source),
            "gpu": options.gpu or gpu_of(run.gpu, recorded.source),
            "calibration": options.calibration or _own_calibration(run),
            "engine": _engine(recorded),
            "adapters": _adapters(recorded, ranks),
            "storage": {**(run.storage or {}), "host_gib": HOST_GIB},
        }
        if run.seed is not None:
            data["seed"] = run.seed
        if run.cluster is not None:
            data["cluster"] = run.cluster
        return scenario_from_dict(data, source=recorded.source)


def _own_calibration(run: RunFile) -> str | None:
    """The calibration that priced one of our own runs, if it is one of those that come with simlora."""
    name = (run.calibration or {}).get("id")
    return name if run.server == SERVER and name in shipped() else None


def _engine(recorded: RecordedRun) -> dict[str, Any]:
    run = recorded.run
    # A real server has LoRA off unless told otherwise; our own runs state every field.
    engine: dict[str, Any] = {"enable_lora": False, "endpoint": run.endpoint}
    engine["kind"] = kind = str(run.engine.get("kind", run.server) if run.server == SERVER else run.server)
    # An unknown kind is refused with the scenario.
    fields = engine_config(kind if kind in ENGINES else DEFAULT_KIND).model_fields
    if run.server != SERVER and "version" in fields:
        engine["version"] = run.server_version
    engine |= _modelled(run.engine, fields, recorded.source)
    if "version" not in fields:
        return engine  # its settings say all: what `resolved` holds of it has vLLM's names
    for key, field in _RESOLVED.items():
        value = getattr(run.resolved, key)
        if value is not None:
            engine[field] = value
    if engine["enable_lora"] and run.resolved.max_cpu_loras is not None:
        engine["max_cpu_loras"] = run.resolved.max_cpu_loras
    if run.prefix_caching is not None:
        engine["enable_prefix_caching"] = run.prefix_caching
    engine.setdefault("max_model_len", _context_tokens(recorded, engine))
    return engine


def _modelled(flags: dict[str, Any], fields: Collection[str], source: str) -> dict[str, Any]:
    """The recorded flags without those that do not matter to timing."""
    kept = {}
    for key, value in flags.items():
        flag = key.replace("_", "-")
        if key in fields:
            kept[key] = value
        elif (
            flag in vllm_args.IGNORED
            or flag in vllm_args.IGNORED_SWITCHES
            or value is None
            or value is False
            or str(value).lower() in vllm_args.NEUTRAL.get(flag, ())
        ):
            continue
        else:
            raise ConfigError(source, f"engine.{key}", value, "a flag that is modelled: this one would change timing")
    return kept


def _context_tokens(recorded: RecordedRun, engine: dict[str, Any]) -> int | None:
    """Without a recorded max_model_len: the longest request, since the KV cache may not hold the model's context."""
    blocks = engine.get("num_gpu_blocks_override")
    if blocks is None:
        return None
    return min(recorded.longest_tokens(), int(blocks * engine.get("block_size", 16)))


def _adapters(recorded: RecordedRun, ranks: npt.NDArray[np.int32]) -> dict[str, Any]:
    run = recorded.run
    counts = Counter(int(rank) for rank in ranks)
    adapters: dict[str, Any] = {"count": len(ranks)}
    if counts:
        adapters["ranks"] = {rank: count / len(ranks) for rank, count in sorted(counts.items())}
    modules = target_modules(run.adapter_target_modules, recorded.source)
    if modules is not None:
        adapters["target_modules"] = modules
    if run.adapters is not None and run.adapters.get("pinned"):
        adapters["pinned"] = run.adapters["pinned"]
    return adapters


def target_modules(recorded: str | list[str] | None, source: str) -> list[str] | None:
    """Module names from a list, or from a text such as "q,k,v,o,gate,up,down"; None: not recorded.

    Raises:
        ConfigError: a name that is no module.
    """
    if recorded is None or recorded == "all-linear":
        return None
    names = recorded.split(",") if isinstance(recorded, str) else recorded
    modules = []
    for name in (name.strip() for name in names):
        full = name if name in ALL_LINEAR + EMBEDDINGS else f"{name}_proj"
        if full not in ALL_LINEAR + EMBEDDINGS:
            allowed = f"names from {', '.join(ALL_LINEAR + EMBEDDINGS)}"
            raise ConfigError(source, "adapter_target_modules", name, allowed)
        modules.append(full)
    return modules


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
