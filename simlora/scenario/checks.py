"""Rules that hold between keys. Each raises one WrongValueError that names the keys and what is allowed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from simlora.scenario.adapters import AdaptersConfig, ClassPopularity, ExplicitPopularity
from simlora.scenario.arrivals import FlashCrowdArrivals, peak_rate_rps
from simlora.scenario.base import WrongValueError
from simlora.scenario.lora_modules import adapter_bytes, supported_modules

if TYPE_CHECKING:
    from simlora.scenario.root import Scenario

MAX_REQUESTS = 100_000_000
"""Most requests of one run: what fits a laptop's memory as columns, with room to spare."""


def check_scenario(scenario: Scenario) -> None:
    """All rules, the most basic first.

    Raises:
        WrongValueError: the first rule that does not hold.
    """
    _check_version_flags(scenario)
    _check_parallelism(scenario)
    _check_batch(scenario)
    _check_workload(scenario)
    if not scenario.engine.enable_lora:
        if scenario.adapters.count:
            raise WrongValueError("adapters.count", scenario.adapters.count, "must be 0 with engine.enable_lora: false")
        return
    _check_popularity(scenario.adapters)
    _check_ranks(scenario)
    _check_modules(scenario)
    _check_slots(scenario)
    _check_host_memory(scenario)


def _check_parallelism(scenario: Scenario) -> None:
    engine, model = scenario.engine, scenario.model_spec
    if not divides_model(scenario, engine.tensor_parallel_size):
        possible = [str(size) for size in range(1, 65) if divides_model(scenario, size)]
        raise WrongValueError(
            "engine.tensor_parallel_size",
            engine.tensor_parallel_size,
            f"must divide the {model.num_attention_heads} attention heads and the MLP width of {model.name}, and "
            f"divide its {model.num_key_value_heads} KV heads or be a multiple of them: {', '.join(possible)}",
        )
    if engine.fully_sharded_loras and engine.max_lora_rank % engine.tensor_parallel_size:
        raise WrongValueError(
            "engine.fully_sharded_loras",
            True,
            f"needs engine.max_lora_rank ({engine.max_lora_rank}) to be a multiple of "
            f"engine.tensor_parallel_size ({engine.tensor_parallel_size})",
        )


def divides_model(scenario: Scenario, size: int) -> bool:
    """Whether the model can be sharded over that many GPUs; KV heads are replicated when there are fewer of them.

    Source: vLLM's `QKVParallelLinear` and `divide`.
    """
    model = scenario.model_spec
    kv_heads = model.num_key_value_heads
    width = model.moe_intermediate_size if model.is_moe else model.intermediate_size
    kv_fits = kv_heads % size == 0 or size % kv_heads == 0
    return model.num_attention_heads % size == 0 and kv_fits and width % size == 0


def _check_batch(scenario: Scenario) -> None:
    engine, model = scenario.engine, scenario.model_spec
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


def _check_popularity(adapters: AdaptersConfig) -> None:
    popularity = adapters.popularity
    if isinstance(popularity, ExplicitPopularity) and len(popularity.rates_rps) != adapters.count:
        listed = len(popularity.rates_rps)
        raise WrongValueError(
            "adapters.count", adapters.count, f"adapters.popularity.rates_rps lists {listed} adapters"
        )
    if isinstance(popularity, ClassPopularity):
        listed = sum(item.count for item in popularity.classes)
        if listed != adapters.count:
            raise WrongValueError(
                "adapters.count", adapters.count, f"adapters.popularity.classes hold {listed} adapters"
            )


def _check_workload(scenario: Scenario) -> None:
    workload = scenario.workload
    if workload.arrivals is None or workload.duration_s is None:
        return
    most = peak_rate_rps(workload.arrivals) * workload.duration_s
    if most > MAX_REQUESTS:
        allowed = f"up to {most:.3g} requests arrive in that time; at most {MAX_REQUESTS:,} can be simulated"
        raise WrongValueError("workload.duration_s", workload.duration_s, allowed)
    if isinstance(workload.arrivals, FlashCrowdArrivals) and workload.arrivals.start_s >= workload.duration_s:
        allowed = f"must be below workload.duration_s ({workload.duration_s:g})"
        raise WrongValueError("workload.arrivals.start_s", workload.arrivals.start_s, allowed)


def _check_version_flags(scenario: Scenario) -> None:
    for key, only in scenario.rules.fixed_flags:
        value = getattr(scenario.engine, key)
        if value != only:
            allowed = f"vLLM {scenario.engine.version} has no choice here: leave it out"
            raise WrongValueError(f"engine.{key}", value, allowed)


def _check_ranks(scenario: Scenario) -> None:
    engine, allowed = scenario.engine, scenario.rules.allowed_lora_ranks
    if engine.max_lora_rank not in allowed:
        ranks = ", ".join(map(str, allowed))
        raise WrongValueError("engine.max_lora_rank", engine.max_lora_rank, f"vLLM {engine.version} allows: {ranks}")
    for rank, share in scenario.adapters.ranks.items():
        if rank > engine.max_lora_rank and share > 0 and scenario.adapters.count:
            limit = engine.max_lora_rank
            raise WrongValueError("adapters.ranks", rank, f"must be at most engine.max_lora_rank ({limit})")


def _check_modules(scenario: Scenario) -> None:
    model, rules = scenario.model_spec, scenario.rules
    supported = supported_modules(model, rules.expert_lora)
    for module in scenario.adapter_modules if scenario.adapters.count else ():
        if module not in supported:
            allowed = f"vLLM {rules.version} serves these on {model.name}: {', '.join(supported)}"
            raise WrongValueError("adapters.target_modules", module, allowed)
    if not scenario.slot_modules:
        allowed = f"none of these is a LoRA layer of {model.name}: {', '.join(supported)}"
        raise WrongValueError("engine.lora_target_modules", scenario.engine.lora_target_modules, allowed)
    if "lm_head" in scenario.slot_modules and model.vocab_size > rules.max_lora_vocab:
        allowed = f"its vocabulary of {model.vocab_size} exceeds the {rules.max_lora_vocab} that vLLM's LoRA supports"
        raise WrongValueError("model", scenario.model, allowed)


def _check_slots(scenario: Scenario) -> None:
    engine, adapters = scenario.engine, scenario.adapters
    if engine.max_cpu_loras < engine.max_loras:
        allowed = f"max_cpu_loras ({engine.max_cpu_loras}) must be at least max_loras ({engine.max_loras})"
        raise WrongValueError("engine.max_cpu_loras", engine.max_cpu_loras, allowed)
    for adapter in adapters.pinned:
        if not 1 <= adapter <= adapters.count:
            raise WrongValueError(
                "adapters.pinned", adapter, f"must be an adapter id from 1 to adapters.count ({adapters.count})"
            )
    if len(set(adapters.pinned)) < len(adapters.pinned):
        raise WrongValueError("adapters.pinned", list(adapters.pinned), "an id is listed twice")
    if len(adapters.pinned) >= engine.max_loras:
        allowed = f"at most engine.max_loras - 1 ({engine.max_loras - 1}) adapters: one slot must stay free to move"
        raise WrongValueError("adapters.pinned", list(adapters.pinned), allowed)


def _check_host_memory(scenario: Scenario) -> None:
    """Every tensor-parallel worker keeps a whole copy of each cached adapter in pinned host memory, at its own rank."""
    engine, storage = scenario.engine, scenario.storage
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


def host_cache_bytes(scenario: Scenario, cached: int) -> int:
    """Host bytes of one replica when the `cached` largest adapters are in memory: all workers, each at its own rank."""
    total, left = 0, cached
    for rank, count in sorted(scenario.adapters.rank_counts().items(), reverse=True):
        taken = min(count, left)
        total += taken * adapter_bytes(scenario.model_spec, rank, scenario.adapter_modules)
        left -= taken
    return total * scenario.engine.tensor_parallel_size


def largest_host_cache(scenario: Scenario) -> int:
    """The largest max_cpu_loras whose adapters fit storage.host_gib, whichever adapters they are."""
    left, fit = scenario.storage.host_gib * 2**30 / scenario.engine.tensor_parallel_size, 0
    for rank, count in sorted(scenario.adapters.rank_counts().items(), reverse=True):
        size = adapter_bytes(scenario.model_spec, rank, scenario.adapter_modules)
        taken = min(count, int(left // size))
        fit, left = fit + taken, left - taken * size
        if taken < count:
            break
    return fit
