"""Carrying a calibration over to another GPU or engine. What is carried over is named in `extrapolated`.

A rate of a family of LoRA kernels near the GPU's own limit goes with the limit, memory bandwidth or FLOPS. A rate far
below it is that of thread blocks that wait for themselves: it goes with the number of SMs, up to the limit. Serial
times of a kernel are kept.
"""

from __future__ import annotations

from typing import Any

from simlora.latency.calibration import Calibration, FamilyParameters, GpuId, StartParameters, Term, Terms
from simlora.latency.inputs import EngineSettings
from simlora.scenario.gpu import GpuSpec

ROOFLINE_MEMORY_FRACTION = 0.8
ROOFLINE_FLOPS_FRACTION = 0.6
ROOFLINE_ATTENTION_FRACTION = 0.35
"""Shares of the datasheet's peaks that well-tuned kernels usually reach; for architectures without a calibration."""

BLOCK_COSTS = ("dead_shrink_s", "dead_expand_s", "shrink_s", "shrink_wide_s", "expand_s", "expand_wide_s")

ENGINE_TERMS = ("host", "lora_kernels", "copies", "front_end", "engine_start")


def gpu_id(gpu: GpuSpec) -> GpuId:
    return GpuId(
        name=gpu.name,
        architecture=gpu.architecture,
        hbm_bytes_per_s=gpu.hbm_bytes_per_s,
        bf16_flops=gpu.bf16_flops,
        sm_count=gpu.sm_count,
        host_link_bytes_per_s=gpu.host_link_bytes_per_s,
        gpu_link_bytes_per_s=gpu.gpu_link_bytes_per_s,
    )


def scale_to_engine(
    calibration: Calibration, engine: EngineSettings, start: StartParameters | None = None
) -> Calibration:
    """Engine terms of another version or kind are kept as they are, and marked.

    start: the engine's own start, assumed.
    """
    measured = calibration.engine
    same_version = engine.version.split(".")[:2] == measured.version.split(".")[:2]
    if engine.kind == measured.kind and same_version:
        return calibration
    note = f"engine terms of {measured.kind} {measured.version} used for {engine.kind} {engine.version}"
    if start is not None:
        term = calibration.terms.engine_start.model_copy(update={"parameters": start, "basis": "assumed"})
        terms = calibration.terms.model_copy(update={"engine_start": term})
        calibration = calibration.model_copy(update={"terms": terms})
    return _marked(calibration, ENGINE_TERMS, note)


def scale_to_gpu(calibration: Calibration, gpu: GpuSpec) -> Calibration:
    """Memory terms by bandwidth, compute by FLOPS, copies by the host link, thread blocks by SMs; host terms kept.

    An architecture other than the calibrated one gets a pure roofline for the base operators and attention.
    """
    old, new = calibration.gpu, gpu_id(gpu)
    if old == new:
        return calibration
    terms: dict[str, Term] = {}
    notes: list[str] = []
    memory, compute = new.hbm_bytes_per_s / old.hbm_bytes_per_s, new.bf16_flops / old.bf16_flops
    if old.architecture != new.architecture:
        terms |= _roofline(calibration, gpu) | _scaled_rows(calibration, memory)
        notes.append(f"{gpu.architecture} has no calibration: roofline of {gpu.name}")
    elif memory != 1.0 or compute != 1.0:
        terms |= _scaled_operators(calibration, memory, compute)
        terms |= _scaled_rows(calibration, memory)
        notes.append(f"scaled from {old.name} to {new.name}: memory x{memory:.3f}, compute x{compute:.3f}")
    if old.architecture != new.architecture or old.sm_count != new.sm_count:
        blocks = old.sm_count / new.sm_count
        kernels = terms.get("lora_kernels", calibration.terms.lora_kernels)
        terms["lora_kernels"] = _with(kernels, **dict.fromkeys(BLOCK_COSTS, blocks))
        notes.append(f"LoRA thread blocks x{blocks:.3f} (SMs)")
    link = new.host_link_bytes_per_s / old.host_link_bytes_per_s
    if link != 1.0:
        terms["copies"] = _with(calibration.terms.copies, bytes_per_s=link)
        notes.append(f"host link x{link:.3f}")
    families = scaled_families(calibration.terms, old, new)  # marked where a step uses one
    scaled = calibration.terms.model_copy(update={**terms, **families})
    result = calibration.model_copy(update={"terms": scaled, "gpu": new})
    return _marked(result, tuple(terms), "; ".join(notes)) if terms else result


def scale_host(calibration: Calibration, factor: float) -> Calibration:
    """The calibration on a host CPU that needs `factor` times as long: host, front end, and loads except the link."""
    terms = calibration.terms
    host, front, copies = terms.host, terms.front_end, terms.copies
    keys = [key for key in type(host.parameters).model_fields if key != "tail_s"]
    changes = scaled_launches(terms, factor) | {
        "host": _with(host, **dict.fromkeys(keys, factor)),
        "front_end": _with(front, **dict.fromkeys(type(front.parameters).model_fields, factor)),
        "copies": _with(
            copies, module_s=factor, mismatch_module_s=factor, disk_module_s=factor, disk_bytes_per_s=1 / factor
        ),
    }
    note = f"host times x{factor:.3f}"
    return calibration.model_copy(
        update={"terms": terms.model_copy(update=changes), "notes": (*calibration.notes, note)}
    )


def _scaled_operators(calibration: Calibration, memory: float, compute: float) -> dict[str, Term]:
    terms = calibration.terms
    operators = _with(terms.operators, weight_bytes_per_s=memory, activation_bytes_per_s=memory, gemm_flops=compute)
    return {"operators": operators, "attention": _with(terms.attention, kv_bytes_per_s=memory, prefill_flops=compute)}


def _scaled_rows(calibration: Calibration, memory: float) -> dict[str, Term]:
    """LoRA kernels whose reading and adding of rows is apart from their blocks."""
    kernels = calibration.terms.lora_kernels
    if kernels.parameters.row_bytes_per_s is None:
        return {}
    return {"lora_kernels": _with(kernels, row_bytes_per_s=memory)}


def _roofline(calibration: Calibration, gpu: GpuSpec) -> dict[str, Term]:
    memory, terms = gpu.hbm_bytes_per_s * ROOFLINE_MEMORY_FRACTION, calibration.terms
    operators = terms.operators.parameters.model_copy(
        update={
            "weight_bytes_per_s": memory,
            "activation_bytes_per_s": memory,
            "gemm_flops": gpu.bf16_flops * ROOFLINE_FLOPS_FRACTION,
        }
    )
    attention = terms.attention.parameters.model_copy(
        update={"kv_bytes_per_s": memory, "prefill_flops": gpu.bf16_flops * ROOFLINE_ATTENTION_FRACTION}
    )
    return {
        "operators": terms.operators.model_copy(update={"parameters": operators, "basis": "roofline"}),
        "attention": terms.attention.model_copy(update={"parameters": attention, "basis": "roofline"}),
    }


def _with(term: Any, **factors: float) -> Any:
    """The term with some parameters multiplied, marked as scaled."""
    old = term.parameters
    new = old.model_copy(update={key: getattr(old, key) * factor for key, factor in factors.items()})
    return term.model_copy(update={"parameters": new, "basis": "scaled"})


def _marked(calibration: Calibration, terms: tuple[str, ...], note: str) -> Calibration:
    names = tuple(dict.fromkeys((*calibration.extrapolated, *terms)))
    return calibration.model_copy(update={"extrapolated": names, "notes": (*calibration.notes, note)})


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
