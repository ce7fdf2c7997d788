"""Rules between the keys of engines other than vLLM, and with the adapters. Each raises one WrongValueError."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from simlora.scenario.base import WrongValueError
from simlora.scenario.gpu import GpuSpec
from simlora.scenario.lora_modules import adapter_bytes, supported_modules
from simlora.scenario.model import ModelSpec
from simlora.scenario.sections import Sections

DEFAULT_STEP_TOKENS = 8192
"""Tokens in one step of the naive baselines, unless the longest sequence has more."""

_CONTEXT_BYTES = 1e9
"""CUDA and what is as large on any GPU."""


def check_common(engine: Any, scenario: Sections, pins: bool = False, stages: str = "") -> None:
    """What every published engine needs.

    Args:
        pins: it can keep adapters on the GPU for good.
        stages: why it has no pipeline stages; empty: it simply has none.
    """
    if engine.pipeline_parallel_size > 1:
        why = stages or f"{engine.kind} has no pipeline stages"
        raise WrongValueError("engine.pipeline_parallel_size", engine.pipeline_parallel_size, f"must be 1: {why}")
    model = scenario.model_spec
    if engine.max_model_len > model.max_position_embeddings:
        limit = f"{model.name} takes at most {model.max_position_embeddings} tokens"
        raise WrongValueError("engine.max_model_len", engine.max_model_len, limit)
    check_prefetch(engine)
    if scenario.adapters.pinned and not pins:
        allowed = f"must be empty: {engine.kind} cannot pin adapters"
        raise WrongValueError("adapters.pinned", list(scenario.adapters.pinned), allowed)
    if not engine.enable_lora or not scenario.adapters.count:
        return
    check_modules(engine.kind, scenario)
    for rank in used_ranks(scenario):
        if rank > engine.max_lora_rank:
            allowed = f"{engine.kind} serves ranks up to {engine.max_lora_rank}"
            raise WrongValueError("adapters.ranks", rank, allowed)


def check_prefetch(engine: Any) -> None:
    """Copies can only begin early on a stream of their own."""
    if engine.adapter_loading.prefetch and not engine.adapter_loading.overlap:
        allowed = "needs engine.adapter_loading.overlap: true"
        raise WrongValueError("engine.adapter_loading.prefetch", True, allowed)


def check_blocking_loads(engine: Any) -> None:
    """Engines that copy an adapter within the step that needs it."""
    if engine.adapter_loading.overlap:
        allowed = f"must be false: {engine.kind} loads adapters within its steps"
        raise WrongValueError("engine.adapter_loading.overlap", True, allowed)


def check_modules(name: str, scenario: Sections) -> None:
    """Modules that no engine here adapts on the model."""
    supported = supported_modules(scenario.model_spec, expert_lora=True)
    for module in scenario.adapter_modules:
        if module not in supported:
            allowed = f"{name} serves these on {scenario.model_spec.name}: {', '.join(supported)}"
            raise WrongValueError("adapters.target_modules", module, allowed)


def check_ranks(scenario: Sections, allowed_ranks: Iterable[int], whose: str) -> None:
    """Ranks for which there are kernels."""
    allowed = tuple(allowed_ranks)
    for rank in used_ranks(scenario):
        if rank not in allowed:
            listed = ", ".join(map(str, allowed))
            raise WrongValueError("adapters.ranks", rank, f"{whose} serves ranks {listed} only")


def check_one_gpu(engine: Any, whose: str) -> None:
    """Engines without tensor parallelism."""
    if engine.tensor_parallel_size > 1:
        allowed = f"must be 1: {whose} serves adapters on one GPU only"
        raise WrongValueError("engine.tensor_parallel_size", engine.tensor_parallel_size, allowed)


def check_slots(engine: Any, scenario: Sections, base: int = 0) -> None:
    """Pinned adapters must leave a slot that moves. base: slots that the base model takes."""
    pinned, most = scenario.adapters.pinned, engine.max_loras - 1
    if engine.enable_lora and len(pinned) > most:
        why = "the base model needs one" if base else "one slot must stay free to move"
        raise WrongValueError("adapters.pinned", list(pinned), f"at most {most} of {engine.max_loras} slots: {why}")


def check_prefill_limit(engine: Any, key: str) -> None:
    """Without chunks, the longest sequence must fit one prefill (a preempted one is recomputed whole)."""
    value = getattr(engine, key)
    if value < engine.max_model_len:
        allowed = f"must be at least engine.max_model_len ({engine.max_model_len}): prompts are not split"
        raise WrongValueError(f"engine.{key}", value, allowed)


def check_host_memory(
    scenario: Sections, modules: tuple[str, ...], copies: int, most: int | None = None, key: str | None = None
) -> None:
    """The `most` largest adapters (null: all), `copies` times, must fit host memory. key: the setting behind most."""
    needed, left = 0, math.inf if most is None else most
    for rank in used_ranks(scenario)[::-1]:
        taken = int(min(scenario.adapters.rank_counts()[rank], left))
        needed += taken * adapter_bytes(scenario.model_spec, rank, modules) * copies
        left -= taken
    if needed <= scenario.storage.host_gib * 2**30:
        return
    least = math.ceil(needed / 2**30 * 100) / 100
    allowed = f"{scenario.engine.kind} keeps its adapters in host memory, {least:,.2f} GiB of them: at least {least:g}"
    if key is not None:
        allowed += f", or a lower {key}"
    raise WrongValueError("storage.host_gib", scenario.storage.host_gib, allowed)


def used_ranks(scenario: Sections) -> list[int]:
    """Ranks that some adapter has, ascending; empty without adapters."""
    adapters = scenario.adapters
    if not scenario.engine.enable_lora or not adapters.count:
        return []
    return sorted(rank for rank, count in adapters.rank_counts().items() if count > 0)


def kv_tokens_estimate(model: ModelSpec, gpu: GpuSpec, degree: int, fraction: float, step_share: float = 0.0) -> int:
    """KV tokens that fit a share of the GPU beside the weights: for defaults that an engine scales by them.

    degree: tensor-parallel GPUs. step_share: one step may compute that share of those tokens, whose activations take
    room too.
    """
    left = gpu.memory_bytes * fraction - model.weight_bytes / degree - _CONTEXT_BYTES
    heads = max(model.num_key_value_heads / degree, 1)
    per_token = model.kv_bytes_per_token * heads / model.num_key_value_heads
    return max(int(left / (per_token + step_share * _activation_bytes(model, degree))), 0)


def _activation_bytes(model: ModelSpec, degree: int) -> float:
    """Per token of a step: four hidden states, and the MLP's three widths or the rows of all chosen experts."""
    h, f = model.hidden_size, model.intermediate_size / degree
    mlp = 3 * f
    if model.is_moe:
        f = model.moe_intermediate_size / degree
        mlp = model.num_experts_per_tok * (max(2 * f, h) + max(f, h) + 2 * f)
    return model.dtype_bytes * (4 * h + max(mlp, 2 * (model.q_size + model.kv_size) / degree))
