"""run.json of a recorded run: what served the requests, and under which limits."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from simlora.errors import ConfigError
from simlora.runs import RUN
from simlora.scenario.base import config_error

_NOT_READ = ("torch", "weights", "ignore_eos", "wall_s", "tokenizer", "notes", "command", "date")
"""Keys that a recording may hold for its reader's eyes."""

AdapterName = int | str


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False, extra="ignore")


class Resolved(_Part):
    """The limits that the server itself reported, every default filled in; null: not known."""

    max_num_seqs: int | None = Field(default=None, ge=1)
    max_num_batched_tokens: int | None = Field(default=None, ge=1)
    max_model_len: int | None = Field(default=None, ge=1)
    num_gpu_blocks: int | None = Field(default=None, ge=2)
    block_size: int | None = Field(default=None, ge=1)
    async_scheduling: bool | None = None
    chunked_prefill: bool | None = None
    max_cpu_loras: int | None = Field(default=None, ge=1)


class Residents(_Part):
    """Adapters resident when the recording began, oldest first; *_others: how many more the requests do not use."""

    gpu: list[AdapterName] = Field(default_factory=list)
    host: list[AdapterName] = Field(default_factory=list)
    gpu_others: int = Field(default=0, ge=0)
    host_others: int = Field(default=0, ge=0)


class HostInfo(_Part):
    cpu: str | None = None
    cores: int | None = None
    machine: str | None = None


class RunFile(_Part):
    """The content of run.json. Times are seconds."""

    format: Literal["simlora-run/1"]
    gpu: str | dict[str, Any]
    """A name, or a mapping with a name and datasheet values that differ, as in a scenario."""
    server: str = Field(min_length=1)
    server_version: str = Field(min_length=1)
    model: str = Field(min_length=1)
    dimensions: dict[str, Any] | None = Field(default=None, alias="model_config")
    dtype: str | None = None
    engine: dict[str, Any]
    resolved: Resolved = Resolved()
    start_s: float | None = Field(default=None, ge=0)
    adapter_target_modules: str | list[str] | None = None
    prefix_caching: bool | None = None
    endpoint: Literal["http", "in-process"] = "http"
    host: HostInfo | None = None
    name: str | None = Field(default=None, min_length=1)
    kind: Literal["trace", "micro"] | None = None
    seed: int | None = Field(default=None, ge=0)
    initial_adapters: Residents | None = None
    calibration: dict[str, Any] | None = None
    adapters: dict[str, Any] | None = None
    workload: dict[str, Any] | None = None
    cluster: dict[str, Any] | None = None
    storage: dict[str, Any] | None = None
    cut_s: float | None = Field(default=None, gt=0)
    offered: int | None = Field(default=None, ge=0)
    completed: int | None = Field(default=None, ge=0)

    @field_validator("gpu")
    @classmethod
    def _named(cls, gpu: str | dict[str, Any]) -> str | dict[str, Any]:
        name = gpu.get("name") if isinstance(gpu, dict) else gpu
        if not isinstance(name, str) or not name:
            raise ValueError("must be the name of a GPU, or a mapping with a name")
        return gpu


def read_run_file(folder: Path) -> RunFile:
    """The run.json of a recorded run's folder.

    Raises:
        ConfigError: missing, not JSON, a value of the wrong kind, or a key that looks misspelt.
    """
    path = folder / RUN
    source = str(path)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(str(folder), RUN, None, f"missing: a recorded run is a folder with {RUN}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(source, RUN, None, f"a readable JSON file ({error})") from None
    if not isinstance(data, dict):
        raise ConfigError(source, RUN, type(data).__name__, "a JSON object")
    _check_keys(data, source)
    try:
        return RunFile.model_validate(data)
    except ValidationError as error:
        raise config_error(error, source, data) from None


def _check_keys(data: dict[str, Any], source: str) -> None:
    """Recordings may carry notes of their own, but `cutt_s` must not be taken for one."""
    known = [field.alias or name for name, field in RunFile.model_fields.items()]
    for key, value in data.items():
        if key in known or key in _NOT_READ:
            continue
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.8)
        if near:
            raise ConfigError(source, key, value, f"unknown key; did you mean {near[0]}?")
