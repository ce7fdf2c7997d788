"""The calibration file: what was measured on one GPU with one engine version, and how well it fits.

All times are seconds. Parameters of a term are those of one class; `measured` gives the range of every variable that
the fit saw; outside it a result is an extrapolation and marked so. A file with an unknown key is refused.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Range = tuple[float, float]


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Term(Part):
    """Common to all terms: where the numbers come from and how far they carry."""

    basis: Literal["measured", "assumed", "scaled", "roofline"]
    measured: dict[str, Range] = Field(default_factory=dict, description="Variable -> lowest and highest value fitted")
    fit_error: float | None = Field(default=None, ge=0, description="RMS relative error on the samples fitted")
    held_out_error: float | None = Field(default=None, ge=0, description="RMS relative error on samples left out")
    note: str = ""


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


__all__ = ["Part", "Range", "Term"]

SCHEMA = "simlora-calibration/1"


class OperatorParameters(Part):
    """Base-model operators without attention over the context, inside a CUDA graph."""

    weight_bytes_per_s: float = Field(gt=0, description="Streaming rate of weights in small-batch GEMMs")
    gemm_flops: float = Field(gt=0, description="FLOP/s of compute-bound GEMMs")
    blend: float = Field(ge=1, description="p of (memory^p + compute^p)^(1/p): how softly the two limits meet")
    layer_s: float = Field(ge=0, description="Kernel start and tail time of one layer, whatever its size")
    activation_bytes_per_s: float = Field(gt=0, description="Rate of element-wise kernels and the sampler")


class AttentionParameters(Part):
    kv_bytes_per_s: float = Field(gt=0, description="Rate at which decode attention reads the KV cache")
    request_tokens: float = Field(ge=0, description="One request's overhead, in context tokens")
    prefill_flops: float = Field(gt=0, description="FLOP/s of causal attention over a prompt")


class LoraKernelParameters(Part):
    """vLLM's Triton shrink and expand, per launch and per thread block on the calibrated number of SMs."""

    launch_s: float = Field(ge=0, description="Start and tail of one shrink or expand")
    zero_s: float = Field(ge=0, description="Zeroing one shrink buffer: a launch of its own")
    dead_shrink_s: float = Field(ge=0)
    dead_expand_s: float = Field(ge=0)
    shrink_s: float = Field(ge=0, description="Useful shrink block, K axis split 64 ways (fewer than 128 tokens)")
    shrink_wide_s: float = Field(ge=0, description="Useful shrink block, K axis split 8 ways")
    expand_s: float = Field(ge=0, description="Useful expand block, fewer than 128 tokens")
    expand_wide_s: float = Field(ge=0, description="Useful expand block, 128 tokens and more")
    surplus_factor: float = Field(
        default=1.0,
        ge=1,
        description="Cost of a block beyond its adapter's tokens over one of an unused slot: two reads, not one",
    )
    row_bytes_per_s: float | None = Field(
        default=None, gt=0, description="Rate at which rows are read and results added; null: within the blocks' times"
    )


class HostParameters(Part):
    """CPU time of the engine process. `layer` costs are multiplied by the number of layers.

    prepare: outputs of the step before, scheduling, batch update. metadata: the LoRA mapping of a changed batch, with a
    flag read back from the GPU: it waits for the step before, and what follows it is never hidden behind the GPU.
    launch: attention metadata, the replay or launches of the forward pass, logits and sampler.
    """

    prepare_s: float = Field(ge=0)
    prepare_request_s: float = Field(ge=0)
    skip_s: float = Field(default=0.0, ge=0, description="Per waiting request that finds no slot and is passed over")
    registered_s: float = Field(
        default=0.0,
        ge=0,
        description="Per adapter of the step and adapter in the host cache, whose list is copied for each",
    )
    change_s: float = Field(ge=0, description="Extra preparation of a changed batch: request states, sampling inputs")
    metadata_s: float = Field(ge=0)
    metadata_token_s: float = Field(default=0.0, ge=0, description="Per token of a changed batch")
    metadata_slot_s: float = Field(
        default=0.0, ge=0, description="Per token of a changed batch and slot: the token's slot is looked up in a list"
    )
    launch_s: float = Field(ge=0, description="Launching what lies outside the layers, or one full CUDA graph")
    piecewise_layer_s: float = Field(ge=0, description="Per layer: one graph piece and attention")
    eager_layer_s: float = Field(ge=0, description="Per layer: every kernel by itself")
    eager_lora_unused_layer_s: float = Field(ge=0, description="Extra per layer, LoRA enabled but not in the step")
    eager_lora_layer_s: float = Field(ge=0, description="Extra per layer when the step has adapters")
    tail_s: float = Field(ge=0, description="GPU time after the last launch: logits and sampling")


class CopyParameters(Part):
    """Adapter loads, which block the step."""

    module_s: float = Field(ge=0, description="Host to slot, per (A, B) pair: two zero fills and two copies issued")
    bytes_per_s: float = Field(gt=0, description="Pinned host to device")
    mismatch_module_s: float = Field(ge=0, description="Extra per pair where rank < slot rank: staged copies")
    disk_module_s: float = Field(ge=0, description="Disk to host: parse, pack and pin, per pair")
    disk_bytes_per_s: float = Field(gt=0, description="Disk (page cache) to packed pinned host memory")
    overlapped: bool = Field(default=False, description="The bytes of a load move while its copies are being issued")


class FrontEndParameters(Part):
    """One process that takes requests in and hands tokens out, in turn."""

    in_s: float = Field(ge=0)
    out_s: float = Field(ge=0)
    out_request_s: float = Field(ge=0, description="Growth of the way out per running request")
    http_s: float = Field(ge=0, description="Extra on the way in for an HTTP endpoint; half of it on the way out")


class CollectiveParameters(Part):
    latency_s: float = Field(ge=0)
    link_fraction: float = Field(gt=0, le=1, description="Share of the link's rate that a ring all-reduce reaches")


class StartParameters(Part):
    """Engine start: weights, compilation, graph capture."""

    base_s: float = Field(ge=0)
    lora_s: float = Field(ge=0, description="Extra for a second family of graphs with LoRA kernels")
    slot_s: float = Field(ge=0)


class OperatorTerm(Term):
    parameters: OperatorParameters


class AttentionTerm(Term):
    parameters: AttentionParameters


class LoraKernelTerm(Term):
    parameters: LoraKernelParameters


class HostTerm(Term):
    parameters: HostParameters


class CopyTerm(Term):
    parameters: CopyParameters


class FrontEndTerm(Term):
    parameters: FrontEndParameters


class CollectiveTerm(Term):
    parameters: CollectiveParameters


class StartTerm(Term):
    parameters: StartParameters


class Terms(Part):
    operators: OperatorTerm
    attention: AttentionTerm
    lora_kernels: LoraKernelTerm
    host: HostTerm
    copies: CopyTerm
    front_end: FrontEndTerm
    collectives: CollectiveTerm
    engine_start: StartTerm
    lora_families: FamiliesTerm | None = None
    launches: LaunchTerm | None = None
    host_memory: HostMemoryTerm | None = None
    sends: SendTerm | None = None


FAMILY_TERMS = ("lora_families", "launches", "host_memory")
"""Terms that only engines and kernels other than vLLM's read; a file may leave them out."""
OPTIONAL_TERMS = (*FAMILY_TERMS, "sends")
"""Without the last, a send to a peer is priced as an all-reduce's way over the link."""


class EngineId(Part):
    kind: str
    version: str


class GpuId(Part):
    """Datasheet values that the parameters are tied to; scaling to another GPU goes by their ratios."""

    name: str
    architecture: str
    hbm_bytes_per_s: float = Field(gt=0)
    bf16_flops: float = Field(gt=0)
    sm_count: int = Field(gt=0)
    host_link_bytes_per_s: float = Field(gt=0)
    gpu_link_bytes_per_s: float = Field(gt=0)


class Provenance(Part):
    host_cpu: str
    driver: str
    versions: dict[str, str]
    date: str
    command: str
    source_runs: tuple[str, ...]
    host_factors: dict[str, float] = Field(
        default_factory=dict, description="Machine of a source run -> factor on host terms in the fit; 1 = the file's"
    )


class Calibration(Part):
    schema_version: Literal["simlora-calibration/1"] = Field(alias="schema")
    id: str
    engine: EngineId
    gpu: GpuId
    provenance: Provenance
    terms: Terms
    extrapolated: tuple[str, ...] = Field(default=(), description="Terms carried over to another GPU or engine")
    notes: tuple[str, ...] = Field(default=(), description="How this calibration was chosen and scaled")

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, populate_by_name=True)
