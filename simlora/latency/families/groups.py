"""The LoRA-wrapped linears of a model on one GPU, grouped by the rows that they see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from simlora.latency.families.work import LoraWork
from simlora.latency.lora_kernels import EXPERT_LINEARS, active_experts
from simlora.latency.shapes import Linear, lora_linears
from simlora.scenario.model import ModelSpec

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
