"""Carrying the terms of other engines' kernels and launches over to another GPU or host.

A rate near the GPU's own limit goes with the limit, memory bandwidth or FLOPS. A rate far below it is that of thread
blocks that wait for themselves: it goes with the number of SMs, up to the limit. Serial times of a kernel are kept.
"""

from __future__ import annotations

from typing import Any

from simlora.latency.calibration import GpuId, Terms
from simlora.latency.calibration_engines import FamilyParameters

MEMORY_RATES = ("bytes_per_s", "cache_bytes_per_s", "activation_bytes_per_s")
BOUND_SHARE = 0.5
"""Share of the limit from which a rate counts as bound by it."""


def scaled_families(terms: Terms, old: GpuId, new: GpuId) -> dict[str, Any]:
    """LoRA families measured on one GPU, on another."""
    found = terms.lora_families
    if found is None:
        return {}
    families = {
        name: term.model_copy(update={"parameters": _scaled(term.parameters, old, new), "basis": "scaled"})
        for name, term in found.parameters.items()
    }
    return {"lora_families": found.model_copy(update={"parameters": families, "basis": "scaled"})}


def scaled_launches(terms: Terms, factor: float) -> dict[str, Any]:
    """Launches from a host that needs `factor` times as long."""
    found = terms.launches
    if found is None:
        return {}
    old = found.parameters
    new = old.model_copy(update={name: getattr(old, name) * factor for name in ("torch_s", "triton_s", "view_s")})
    return {"launches": found.model_copy(update={"parameters": new, "basis": "scaled"})}


def _scaled(parameters: FamilyParameters, old: GpuId, new: GpuId) -> FamilyParameters:
    blocks = new.sm_count / old.sm_count
    limits = dict.fromkeys(MEMORY_RATES, (old.hbm_bytes_per_s, new.hbm_bytes_per_s))
    limits["flops"] = old.bf16_flops, new.bf16_flops
    changes: dict[str, float | None] = {"tile_s": parameters.tile_s / blocks}
    for name, (old_limit, new_limit) in limits.items():
        rate = getattr(parameters, name)
        if rate is None:
            continue
        if rate < BOUND_SHARE * old_limit:
            changes[name] = min(rate * blocks, new_limit)
        elif name == "cache_bytes_per_s":
            changes[name] = rate * new_limit / old_limit
        else:  # what the cache of one GPU holds, that of another may not
            changes[name] = min(rate * new_limit / old_limit, new_limit)
    return parameters.model_copy(update=changes)
