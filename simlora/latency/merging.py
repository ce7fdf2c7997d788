"""Merging an adapter into the weights, W + B A, and taking it out again."""

from __future__ import annotations

from simlora.latency.calibration import OperatorParameters
from simlora.latency.shapes import lora_linears
from simlora.scenario.model import ModelSpec


def merge_s(model: ModelSpec, tp: int, modules: tuple[str, ...], rank: int, operators: OperatorParameters) -> float:
    """Seconds of one merge or unmerge on one GPU: the product B A, and the adapted weights read and written.

    Every expert of a mixture is adapted. Bounded by the memory for any usual rank. 0 for rank 0.
    """
    if rank <= 0:
        return 0.0
    elements = 0
    for linear in lora_linears(model, tp, modules):
        experts = model.num_experts if linear.name in ("gate_up", "down") else 0
        elements += linear.elements * max(experts, 1)
    elements *= model.num_hidden_layers
    moved_s = 2.0 * elements * model.dtype_bytes / operators.weight_bytes_per_s
    return moved_s + 2.0 * elements * rank / operators.gemm_flops
