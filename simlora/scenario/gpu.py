"""The `gpu` key: a name from the catalogue, and fields of it to override."""

from __future__ import annotations

import difflib
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field, model_serializer, model_validator

from simlora.scenario.base import Config, WrongValueError
from simlora.scenario.gpu_catalog import ALIASES, GPUS, builtin_gpu
from simlora.scenario.gpu_spec import HOST_LINKS, GpuSpec


class GpuConfig(Config):
    """A GPU of the catalogue, by name, with overrides. `gpu: h100-80gb` is short for `gpu: {name: h100-80gb}`."""

    name: str = Field(description="Name in the catalogue, e.g. h100-80gb")
    host_link: Literal["pcie3", "pcie4", "pcie5", "nvlink-c2c"] | None = Field(
        default=None, description="Link to host memory; null: the catalogue's"
    )
    memory_gib: float | None = Field(default=None, gt=0, le=10_000, description="Total device memory")
    hbm_gb_per_s: float | None = Field(default=None, gt=0, le=1e6, description="Device memory bandwidth, 1e9 bytes/s")
    bf16_tflops: float | None = Field(default=None, gt=0, le=1e6, description="Dense BF16 rate, 1e12 per second")
    gpu_link_gb_per_s: float | None = Field(
        default=None, gt=0, le=1e5, description="Link to the other GPUs of the server, one direction, 1e9 bytes/s"
    )

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, data: Any) -> Any:
        if isinstance(data, str):
            return {"name": data}
        if not isinstance(data, (dict, GpuConfig)):
            raise WrongValueError("", data, "must be the name of a GPU, or a mapping with a name and overrides")
        return data

    @model_validator(mode="after")
    def _known(self) -> GpuConfig:
        if builtin_gpu(self.name) is None:
            raise WrongValueError("name", self.name, unknown_name(self.name, [*GPUS, *ALIASES], list(GPUS)))
        return self

    @model_serializer(mode="wrap")
    def _short(self, handler: Any) -> Any:
        given = {key: value for key, value in handler(self).items() if value is not None}
        return self.name if set(given) == {"name"} else given

    def resolve(self) -> GpuSpec:
        """The datasheet values with the overrides in place."""
        spec = builtin_gpu(self.name)
        assert spec is not None  # checked by _known
        changes: dict[str, Any] = {}
        if self.host_link is not None:
            changes |= {"host_link": self.host_link, "host_link_bytes_per_s": HOST_LINKS[self.host_link]}
        for field, value, scale in (
            ("memory_bytes", self.memory_gib, 2**30),
            ("hbm_bytes_per_s", self.hbm_gb_per_s, 1e9),
            ("bf16_flops", self.bf16_tflops, 1e12),
            ("gpu_link_bytes_per_s", self.gpu_link_gb_per_s, 1e9),
        ):
            if value is not None:
                changes[field] = value * scale
        if "memory_bytes" in changes:
            changes["memory_bytes"] = int(changes["memory_bytes"])
        return replace(spec, **changes) if changes else spec


def unknown_name(name: str, spellings: list[str], known: list[str]) -> str:
    """The message for a name that a catalogue lacks: near matches, then all names."""
    near = difflib.get_close_matches(name.lower(), spellings, n=3)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return f"{hint}known: {', '.join(known)}"
