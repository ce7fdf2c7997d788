"""The `gpu` key: a GPU of the catalogue by name, and fields of it to override.

A GPU is described by one entry of the catalogue: datasheet values, memory as the driver reports it, and a dated list
price. The names that the key takes, the JSON Schema and every message follow from the catalogue.
Memory: MiB shown by nvidia-smi or by the cloud's catalogue, not marketing gigabytes ("nominal" where none was found).
Prices: US dollars per GPU-hour, on demand, without tax, as listed on PRICES_DATE by the provider named; override them
with cost.gpu_hour_usd. NVLink figures of the datasheets count both directions: one direction is half.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

from pydantic import Field, model_serializer, model_validator

from simlora.scenario.base import Config, WrongValueError, unknown_name

HOST_LINKS: dict[str, float] = {"pcie3": 16e9, "pcie4": 32e9, "pcie5": 64e9, "nvlink-c2c": 450e9}
"""Bytes per second in one direction: x16 lanes of PCI-SIG's 1, 2 and 4 GB/s, NVIDIA's 900 GB/s both ways for C2C."""


@dataclass(frozen=True)
class GpuSpec:
    """One GPU of a server. Rates are peak values of the vendor's datasheet, dense, in one direction."""

    name: str
    architecture: str
    memory_bytes: int
    """What the driver reports as total, not the marketing figure."""
    hbm_bytes_per_s: float
    bf16_flops: float
    """Dense BF16 with float32 accumulation, per second."""
    host_link: str
    host_link_bytes_per_s: float
    gpu_link_bytes_per_s: float
    """To the other GPUs of the server, one direction; PCIe where there is no NVLink."""
    sm_count: int
    price_hour_usd: float
    """Default list price per GPU-hour; dated in the catalogue."""
    source: str
    aliases: tuple[str, ...] = ()
    """Other spellings of the name, in lower case with hyphens."""

    @property
    def memory_gib(self) -> float:
        """Device memory in GiB (2**30 bytes)."""
        return self.memory_bytes / 2**30


PRICES_DATE = "2026-11-29"

_MIB = 2**20
_NO_NVLINK = 0.0
_NO_PRICE = "no provider's list was read: a placeholder to override"


def _gpu(
    name: str,
    architecture: str,
    memory_mib: int,
    rates: tuple[float, float],
    links: tuple[str, float],
    sm_count: int,
    price: tuple[float, str],
    source: str,
    aliases: tuple[str, ...] = (),
) -> GpuSpec:
    """rates: (memory TB/s, dense BF16 TFLOPS); links: (host link, NVLink GB/s in one direction or 0 for PCIe only)."""
    host_link, nvlink_gb_per_s = links
    host_rate = HOST_LINKS[host_link]
    return GpuSpec(
        name=name,
        architecture=architecture,
        memory_bytes=memory_mib * _MIB,
        hbm_bytes_per_s=rates[0] * 1e12,
        bf16_flops=rates[1] * 1e12,
        host_link=host_link,
        host_link_bytes_per_s=host_rate,
        gpu_link_bytes_per_s=nvlink_gb_per_s * 1e9 or host_rate,
        sm_count=sm_count,
        price_hour_usd=price[0],
        source=f"{source}; price {PRICES_DATE}: {price[1]}",
        aliases=aliases,
    )


_ALL = (
    _gpu(
        "h100-64gb", "hopper", 65_536, (2.0, 989), ("pcie5", 450), 132, (3.99, "as h100-80gb (not sold by the hour)"),
        "MareNostrum 5 custom H100 SXM, 64 GB HBM2e; memory nominal, bandwidth of HBM2e parts, BF16 as H100 SXM",
    ),
    _gpu(
        "h100-80gb", "hopper", 81_920, (3.35, 989), ("pcie5", 450), 132, (3.99, "Lambda 8x, RunPod secure"),
        "NVIDIA H100 SXM datasheet; memory from the AWS catalogue (nvidia-smi shows 81,559 MiB)",
        ("h100", "h100-sxm", "nvidia-h100"),
    ),
    _gpu(
        "h100-94gb", "hopper", 95_830, (3.9, 835), ("pcie5", 300), 132, (3.19, "RunPod secure"),
        "NVIDIA H100 NVL datasheet; memory as nvidia-smi",
        ("h100-nvl",),
    ),
    _gpu(
        "h200-141gb", "hopper", 143_771, (4.8, 989), ("pcie5", 450), 132, (3.99, "Hyperstack"),
        "NVIDIA H200 SXM datasheet; memory as nvidia-smi",
        ("h200", "nvidia-h200"),
    ),
    _gpu(
        "a100-40gb", "ampere", 40_960, (1.555, 312), ("pcie4", 300), 108, (1.99, "Lambda"),
        "NVIDIA A100 SXM datasheet; memory as nvidia-smi",
        ("a100-sxm4-40gb",),
    ),
    _gpu(
        "a100-80gb", "ampere", 81_920, (2.039, 312), ("pcie4", 300), 108, (2.79, "Lambda"),
        "NVIDIA A100 SXM datasheet; memory as nvidia-smi",
        ("a100", "a100-sxm4-80gb"),
    ),
    _gpu(
        "a10g", "ampere", 23_028, (0.6, 70), ("pcie4", _NO_NVLINK), 80, (1.006, "AWS g5.xlarge"),
        "AWS G5 instance data (the A10G has 70 dense BF16 TFLOPS, the A10 125); memory as nvidia-smi",
    ),
    _gpu(
        "l4", "ada", 22_888, (0.3, 121), ("pcie4", _NO_NVLINK), 58, (0.8048, "AWS g6.xlarge"),
        "NVIDIA L4 datasheet; memory from the AWS catalogue",
        ("nvidia-l4",),
    ),
    _gpu(
        "l40s", "ada", 45_776, (0.864, 362), ("pcie4", _NO_NVLINK), 142, (1.861, "AWS g6e.xlarge"),
        "NVIDIA L40S datasheet; memory from the AWS catalogue",
        ("nvidia-l40s",),
    ),
    _gpu(
        "rtx-3090", "ampere", 24_576, (0.936, 71), ("pcie4", _NO_NVLINK), 82, (0.22, _NO_PRICE),
        "NVIDIA GA102 whitepaper (BF16 with float32 accumulation); memory as nvidia-smi",
        ("rtx3090",),
    ),
    _gpu(
        "rtx-4090", "ada", 24_564, (1.008, 165.2), ("pcie4", _NO_NVLINK), 128, (0.34, _NO_PRICE),
        "NVIDIA Ada whitepaper (BF16 with float32 accumulation); memory as nvidia-smi",
        ("rtx4090",),
    ),
    _gpu(
        "rtx-pro-6000", "blackwell", 97_887, (1.792, 503.8), ("pcie5", _NO_NVLINK), 188,
        (1.79, _NO_PRICE),
        "NVIDIA RTX PRO Blackwell whitepaper (BF16 with float32 accumulation); memory as nvidia-smi",
        ("rtxpro6000",),
    ),
    _gpu(
        "b200", "blackwell", 183_359, (8.0, 2250), ("pcie5", 900), 148, (6.69, "Lambda 8x"),
        "NVIDIA B200 datasheet; memory from the AWS catalogue",
        ("nvidia-b200",),
    ),
    _gpu(
        "gh200", "hopper", 97_871, (4.0, 989), ("nvlink-c2c", 450), 132, (1.99, _NO_PRICE),
        "NVIDIA GH200 96 GB HBM3 datasheet; memory as nvidia-smi",
        ("gh200-96gb",),
    ),
    _gpu(
        "mi300x", "cdna3", 196_592, (5.3, 1307), ("pcie5", 448), 304, (1.99, "median of the survey"),
        "AMD MI300X datasheet (304 compute units, 7 Infinity Fabric links of 64 GB/s each way); memory as rocm-smi",
    ),
)  # fmt: skip

GPUS = MappingProxyType({spec.name: spec for spec in _ALL})
"""Name -> datasheet values."""

ALIASES = MappingProxyType({alias: spec.name for spec in _ALL for alias in spec.aliases})
"""Other spelling -> name."""


def builtin_gpu(name: str) -> GpuSpec | None:
    """The GPU of that name or alias, in any case and with spaces or underscores for hyphens; or None."""
    key = "-".join(name.lower().replace("_", " ").split())
    return GPUS.get(ALIASES.get(key, key))


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
