"""Rules between the keys of a vLLM engine, and with the adapters. Each raises one WrongValueError."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from simlora.scenario.base import WrongValueError
from simlora.scenario.checks import host_cache_bytes, largest_host_cache
from simlora.scenario.engines.published_checks import check_prefetch
from simlora.scenario.lora_modules import supported_modules

if TYPE_CHECKING:
    from simlora.scenario.engines.vllm import EngineConfig
    from simlora.scenario.root import Scenario


def check_vllm(engine: EngineConfig, scenario: Scenario) -> None:
    """All rules, the most basic first."""
    _check_version_flags(engine)
    _check_sharding(engine)
    _check_stages(engine, scenario)
    _check_batch(engine, scenario)
    check_prefetch(engine)
    if not engine.enable_lora:
        return
    _check_ranks(engine, scenario)
    _check_modules(engine, scenario)
    _check_slots(engine, scenario)
    _check_host_memory(engine, scenario)


def _check_sharding(engine: EngineConfig) -> None:
    if engine.fully_sharded_loras and engine.max_lora_rank % engine.tensor_parallel_size:
        raise WrongValueError(
            "engine.fully_sharded_loras",
            True,
            f"needs engine.max_lora_rank ({engine.max_lora_rank}) to be a multiple of "
            f"engine.tensor_parallel_size ({engine.tensor_parallel_size})",
        )


def _check_stages(engine: EngineConfig, scenario: Scenario) -> None:
    """What is modelled together with pipeline stages."""
    stages, layers = engine.pipeline_parallel_size, scenario.model_spec.num_hidden_layers
    if stages == 1:
        return
    key = "engine.pipeline_parallel_size"
    if stages > layers:
        raise WrongValueError(key, stages, f"at most one stage for each of the {layers} layers of {scenario.model}")
    if engine.version != "0.20":
        raise WrongValueError(key, stages, f'must be 1 with vLLM {engine.version}: stages are modelled for "0.20"')
    if engine.async_scheduling:
        raise WrongValueError("engine.async_scheduling", True, f"must be false with {key} above 1")
    if engine.speculative is not None:
        allowed = f"must be absent with {key} above 1: vLLM has no draft tokens there"
        raise WrongValueError("engine.speculative", engine.speculative.model_dump(), allowed)
    if engine.adapter_loading.overlap:
        raise WrongValueError("engine.adapter_loading.overlap", True, f"must be false with {key} above 1")
    if engine.kernels != "padded":
        raise WrongValueError("engine.kernels", engine.kernels, f"must be padded with {key} above 1")


def _check_batch(engine: EngineConfig, scenario: Scenario) -> None:
    model = scenario.model_spec
    if engine.max_model_len > model.max_position_embeddings:
        limit = model.max_position_embeddings
        raise WrongValueError(
            "engine.max_model_len", engine.max_model_len, f"{model.name} takes at most {limit} tokens"
        )
    if engine.max_num_batched_tokens < engine.max_num_seqs:
        raise WrongValueError(
            "engine.max_num_batched_tokens",
            engine.max_num_batched_tokens,
            f"must be at least engine.max_num_seqs ({engine.max_num_seqs})",
        )
    if not engine.enable_chunked_prefill and engine.max_num_batched_tokens < engine.max_model_len:
        raise WrongValueError(
            "engine.max_num_batched_tokens",
            engine.max_num_batched_tokens,
            f"must be at least engine.max_model_len ({engine.max_model_len}) with engine.enable_chunked_prefill: false",
        )


def _check_version_flags(engine: EngineConfig) -> None:
    for key, only in engine.rules.fixed_flags:
        value = getattr(engine, key)
        if value != only:
            allowed = f"vLLM {engine.version} has no choice here: leave it out"
            raise WrongValueError(f"engine.{key}", value, allowed)


def _check_ranks(engine: EngineConfig, scenario: Scenario) -> None:
    allowed = engine.rules.allowed_lora_ranks
    if engine.max_lora_rank not in allowed:
        ranks = ", ".join(map(str, allowed))
        raise WrongValueError("engine.max_lora_rank", engine.max_lora_rank, f"vLLM {engine.version} allows: {ranks}")
    for rank, share in scenario.adapters.ranks.items():
        if rank > engine.max_lora_rank and share > 0 and scenario.adapters.count:
            limit = engine.max_lora_rank
            raise WrongValueError("adapters.ranks", rank, f"must be at most engine.max_lora_rank ({limit})")


def _check_modules(engine: EngineConfig, scenario: Scenario) -> None:
    model, rules = scenario.model_spec, engine.rules
    supported = supported_modules(model, rules.expert_lora)
    for module in scenario.adapter_modules if scenario.adapters.count else ():
        if module not in supported:
            allowed = f"vLLM {rules.version} serves these on {model.name}: {', '.join(supported)}"
            raise WrongValueError("adapters.target_modules", module, allowed)
    if not scenario.slot_modules:
        allowed = f"none of these is a LoRA layer of {model.name}: {', '.join(supported)}"
        raise WrongValueError("engine.lora_target_modules", engine.lora_target_modules, allowed)
    if "lm_head" in scenario.slot_modules and model.vocab_size > rules.max_lora_vocab:
        allowed = f"its vocabulary of {model.vocab_size} exceeds the {rules.max_lora_vocab} that vLLM's LoRA supports"
        raise WrongValueError("model", scenario.model, allowed)


def _check_slots(engine: EngineConfig, scenario: Scenario) -> None:
    adapters = scenario.adapters
    if engine.max_cpu_loras < engine.max_loras:
        allowed = f"max_cpu_loras ({engine.max_cpu_loras}) must be at least max_loras ({engine.max_loras})"
        raise WrongValueError("engine.max_cpu_loras", engine.max_cpu_loras, allowed)
    if len(adapters.pinned) >= engine.max_loras:
        allowed = f"at most engine.max_loras - 1 ({engine.max_loras - 1}) adapters: one slot must stay free to move"
        raise WrongValueError("adapters.pinned", list(adapters.pinned), allowed)


def _check_host_memory(engine: EngineConfig, scenario: Scenario) -> None:
    """Every tensor-parallel worker keeps a whole copy of each cached adapter in pinned host memory, at its own rank."""
    storage = scenario.storage
    limit_bytes = storage.host_gib * 2**30
    needed_bytes = host_cache_bytes(scenario, engine.max_cpu_loras)
    if needed_bytes <= limit_bytes:
        return
    cached, workers = min(engine.max_cpu_loras, scenario.adapters.count), engine.tensor_parallel_size
    need = f"{cached} adapters x {workers} workers take {_gib(needed_bytes)} GiB of host memory"
    most = largest_host_cache(scenario)
    if most >= engine.max_loras:
        allowed = f"{need}, storage.host_gib is {storage.host_gib:g}: at most {most}"
        raise WrongValueError("engine.max_cpu_loras", engine.max_cpu_loras, allowed)
    least = _gib(host_cache_bytes(scenario, engine.max_loras))
    allowed = f"{need}: at least {least}, for engine.max_loras ({engine.max_loras}) of them"
    raise WrongValueError("storage.host_gib", storage.host_gib, allowed)


def _gib(size_bytes: int) -> str:
    """GiB, rounded up so that the figure is enough."""
    return f"{math.ceil(size_bytes / 2**30 * 100) / 100:,.2f}"
