"""What a step asks of LoRA kernels, which linears they serve, and what a family of kernels tells: its cost on them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from simlora.latency.calibration import FamilyParameters
from simlora.latency.lora_kernels import EXPERT_LINEARS, active_experts
from simlora.latency.shapes import Linear, lora_linears
from simlora.latency.step import AdapterMix
from simlora.scenario.model import ModelSpec


class LoraWork(NamedTuple):
    """One step's LoRA work. Tokens are rows of the kernels."""

    tokens: int
    """Rows of the step, padded to a captured size where it runs in a graph."""
    lora_tokens: int
    adapters: int
    """Distinct adapters."""
    mix: AdapterMix
    head_rows: int
    """Rows that get logits."""
    sequences: int
    """Decodes and prompts."""
    longest: int = 1
    """Tokens of the longest sequence: 1 in a step of decodes."""

    @property
    def mean_rank(self) -> float:
        """Over the LoRA tokens."""
        return self.mix.rank_tokens / self.lora_tokens if self.lora_tokens else 0.0


class Cost(NamedTuple):
    """Physical size of some kernels; seconds = a price per unit of each, summed."""

    products: float
    """Kernels that multiply."""
    fills: float = 0.0
    """Trivial kernels: zero fills, index arithmetic, additions."""
    depth: float = 0.0
    """Input columns times rows of a tile, summed over the kernels that shrink."""
    ranks: float = 0.0
    """Mean rank, summed over the kernels."""
    tiles: float = 0.0
    weight_bytes: float = 0.0
    """Read once."""
    repeated_bytes: float = 0.0
    """Read again, by further tiles of the same adapter."""
    operations: float = 0.0
    activation_bytes: float = 0.0
    views: float = 0.0
    """Views of tensors taken in Python: host time only."""


def seconds(cost: Cost, parameters: FamilyParameters, fill_s: float) -> float:
    """The price of a cost; fill_s is that of one trivial kernel."""
    p = parameters
    total = (
        cost.products * p.launch_s
        + cost.fills * fill_s
        + cost.depth * p.depth_s
        + cost.ranks * p.rank_s
        + cost.tiles * p.tile_s
    )
    if p.bytes_per_s is not None:
        total += cost.weight_bytes / p.bytes_per_s
    if p.cache_bytes_per_s is not None:
        total += cost.repeated_bytes / p.cache_bytes_per_s
    if p.flops is not None:
        total += cost.operations / p.flops
    if p.activation_bytes_per_s is not None:
        total += cost.activation_bytes / p.activation_bytes_per_s
    return total


ROW_PARALLEL = ("o", "down")
"""Linears that tensor parallelism splits by input; the others it splits by output."""
PARTS = {"qkv": ("q_proj", "k_proj", "v_proj"), "gate_up": ("gate_proj", "up_proj")}


class Group(NamedTuple):
    """Linears of all layers that see the same rows. Sizes per GPU."""

    linears: int
    """Fused: q, k and v count once."""
    slices: int
    """Each projection by itself."""
    fused_columns: int
    """Input columns, of the fused linears."""
    slice_columns: int
    rank_elements: int
    """Weight elements of one adapter for each unit of its rank."""
    row_bytes: int
    """Inputs of every slice read, outputs read and written, per row."""
    experts: tuple[int, int] = (0, 0)
    """Experts of a layer, and experts a token uses, where each is a weight of its own."""
    head: bool = False

    def work(self, work: LoraWork) -> LoraWork:
        """The step as these linears see it: experts multiply rows and weights, the head sees sampled rows."""
        if self.head:
            rows = min(work.lora_tokens, max(work.head_rows, work.adapters))
            mix = work.mix._replace(rank_tokens=round(work.mean_rank * rows))
            return work._replace(tokens=work.head_rows, lora_tokens=rows, mix=mix, longest=1)
        if not self.experts[0] or not work.adapters:
            return work
        total, per_token = self.experts
        reached = max(float(active_experts(total, per_token, work.lora_tokens / work.adapters)), 1.0)
        mix = work.mix._replace(
            rank_sum=round(work.mix.rank_sum * reached), rank_tokens=work.mix.rank_tokens * per_token
        )
        return work._replace(
            tokens=work.tokens * per_token,
            lora_tokens=work.lora_tokens * per_token,
            adapters=round(work.adapters * reached),
            mix=mix,
            sequences=work.sequences * per_token,
        )


def lora_groups(
    model: ModelSpec, tp: int, modules: tuple[str, ...], fused: bool, sharded: bool = False, layers: int | None = None
) -> tuple[Group, ...]:
    """Groups of the modules' linears: dense ones, those of experts, and lm_head.

    fused: a fused linear is wrapped whole. sharded: tensor parallelism splits A and B both; else the matrix that meets
    the unsharded side stays whole.
    """
    depth = model.num_hidden_layers if layers is None else layers
    linears = [linear if fused else _own_parts(linear, modules) for linear in lora_linears(model, tp, modules)]
    mixed = [linear for linear in linears if model.num_experts and linear.name in EXPERT_LINEARS]
    dense = [linear for linear in linears if linear not in mixed]
    found = [_group(dense, depth, tp, sharded)]
    if mixed:
        found.append(_group(mixed, depth, tp, sharded)._replace(experts=(model.num_experts, model.num_experts_per_tok)))
    if "lm_head" in modules:
        head = Linear("lm_head", model.hidden_size, (model.vocab_size,))
        found.append(_group([head], 1, 1, False)._replace(head=True))
    return tuple(group for group in found if group.linears)


def _own_parts(linear: Linear, modules: tuple[str, ...]) -> Linear:
    """Only the projections that the adapters hold."""
    names = PARTS.get(linear.name)
    if names is None:
        return linear
    outputs = [width for name, width in zip(names, linear.outputs, strict=True) if name in modules]
    return Linear(linear.name, linear.inputs, tuple(outputs))


def _group(linears: Sequence[Linear], layers: int, tp: int, sharded: bool) -> Group:
    slices = sum(len(linear.outputs) for linear in linears)
    return Group(
        linears=layers * len(linears),
        slices=layers * slices,
        fused_columns=layers * sum(linear.inputs for linear in linears),
        slice_columns=layers * sum(linear.inputs * len(linear.outputs) for linear in linears),
        rank_elements=layers * sum(rank_elements(linear, tp, sharded) for linear in linears),
        row_bytes=layers * sum(2 * linear.inputs * len(linear.outputs) + 4 * sum(linear.outputs) for linear in linears),
    )


def rank_elements(linear: Linear, tp: int, sharded: bool) -> int:
    """Elements of A and B on one GPU for each unit of rank."""
    a, b = linear.inputs * len(linear.outputs), sum(linear.outputs)
    if not sharded:
        return a + b
    return a + -(-b // tp) if linear.name in ROW_PARALLEL else -(-a // tp) + b


ELEMENT_BYTES = 2


class LoraFamily(Protocol):
    """Kernels of one family on one model's linears."""

    @property
    def triton(self) -> bool:
        """Launched by Triton's launcher rather than through PyTorch."""

    def step_s(self, work: LoraWork) -> float:
        """GPU seconds of a step's LoRA kernels, launched without gaps."""

    def unused_s(self) -> float:
        """GPU seconds where they are launched without any adapter in the step."""

    def launches(self, work: LoraWork) -> float:
        """Kernels launched in a step."""

    def views(self, work: LoraWork) -> float:
        """Views of tensors that Python takes in a step beside launching."""


@dataclass(frozen=True)
class CostedFamily(ABC):
    """A family whose time is a sum over physical sizes."""

    parameters: FamilyParameters
    fill_s: float
    """One trivial kernel."""
    groups: tuple[Group, ...]
    triton: bool = False

    @abstractmethod
    def cost(self, group: Group, work: LoraWork) -> Cost:
        """Sizes for one group, with the work as that group sees it."""

    def step_s(self, work: LoraWork) -> float:
        if work.adapters <= 0:
            return 0.0
        return sum(seconds(self.cost(group, group.work(work)), self.parameters, self.fill_s) for group in self.groups)

    def unused_s(self) -> float:
        """Every kernel starts and ends; no block of it works."""
        return sum(2 * group.linears * self.parameters.launch_s for group in self.groups)

    def launches(self, work: LoraWork) -> float:
        if work.adapters <= 0:
            return 0.0
        costs = [self.cost(group, group.work(work)) for group in self.groups]
        return sum(cost.products + cost.fills for cost in costs)

    def views(self, work: LoraWork) -> float:
        if work.adapters <= 0:
            return 0.0
        return sum(self.cost(group, group.work(work)).views for group in self.groups)
