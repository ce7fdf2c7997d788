"""Optional terms of a calibration: what engines with other kernels, launches and copies than vLLM's need."""

from __future__ import annotations

from pydantic import Field

from simlora.latency.calibration_base import Part, Term


class FamilyParameters(Part):
    """LoRA kernels of one family on the calibrated GPU. A rate that is null costs nothing: it hides in the others."""

    launch_s: float = Field(ge=0, description="Start and tail of one kernel in a step")
    depth_s: float = Field(default=0.0, ge=0, description="Serial time of a tile: per input column and row of it")
    rank_s: float = Field(default=0.0, ge=0, description="Serial time of a kernel per unit of its adapters' rank")
    tile_s: float = Field(default=0.0, ge=0, description="One tile of rows in one kernel")
    bytes_per_s: float | None = Field(default=None, gt=0, description="Weights read for the first time")
    cache_bytes_per_s: float | None = Field(default=None, gt=0, description="Weights read again by further tiles")
    flops: float | None = Field(default=None, gt=0, description="Operations on whole tiles, their waste included")
    activation_bytes_per_s: float | None = Field(default=None, gt=0, description="Inputs and outputs")


class FamilyTerm(Term):
    parameters: FamilyParameters


class FamiliesTerm(Term):
    """Families by name; each has a basis, ranges and errors of its own."""

    parameters: dict[str, FamilyTerm]


class LaunchParameters(Part):
    """Launching one small kernel after another from Python, and from within a CUDA graph."""

    graph_s: float = Field(ge=0, description="In a graph: shortest time between dependent kernels")
    torch_s: float = Field(ge=0, description="Host time of a launch through PyTorch")
    triton_s: float = Field(ge=0, description="Host time of a launch through Triton's launcher")
    view_s: float = Field(default=0.0, ge=0, description="Host time of a view of a tensor, which launches nothing")


class LaunchTerm(Term):
    parameters: LaunchParameters


class SendParameters(Part):
    """Sending a tensor to a peer GPU, launched by itself; the peer waits for it."""

    latency_s: float = Field(ge=0, description="However small the tensor: launching both sides and their handshake")
    link_fraction: float = Field(gt=0, le=1, description="Share of the link's rate that a large tensor reaches")


class SendTerm(Term):
    parameters: SendParameters


class HostMemoryParameters(Part):
    """Copies that are not from pinned memory, and copies beside computing."""

    pageable_bytes_per_s: float = Field(gt=0, description="Pageable host memory to device, staged by the driver")
    pin_tensor_s: float = Field(ge=0, description="Pinned memory of one tensor allocated")
    pin_bytes_per_s: float = Field(gt=0, description="Copied into pinned memory")
    streaming_slowdown: float = Field(ge=1, description="Steps bound by reading weights, beside a copy to the device")
    arithmetic_slowdown: float = Field(ge=1, description="Steps bound by arithmetic, beside a copy to the device")


class HostMemoryTerm(Term):
    parameters: HostMemoryParameters
