"""Changes worth trying on an engine, by the request-seconds that they could save.

Only keys of the scenario's own engine are proposed. A share is that of the summary's bottleneck.shares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Any

from simlora.engines.advice import rank_waste
from simlora.scenario.checks import largest_host_cache
from simlora.scenario.root import Scenario

Changes = dict[str, Any]
"""Key path -> new value."""
Option = tuple[float, Changes]
"""(share of the request-seconds that the change could save, the change)."""
Shares = dict[str, float]

NOTABLE_SHARE = 0.05
"""A share of the request-seconds below which no change is tried for it."""
FULL_GPU = 0.95
"""Largest share of GPU memory that is proposed."""
IDLE_S = 300
"""Silence after which a deployment is proposed to sleep."""


def candidates(scenario: Scenario, summary: dict[str, Any]) -> Iterator[Changes]:
    """Changes, the most promising first. scenario: as the user wrote it."""
    shares = {name: value or 0.0 for name, value in summary["bottleneck"]["shares"].items()}
    if scenario.cluster.topology == "dedicated":
        options = [*_dedicated(scenario)]
    else:
        options = [*_OPTIONS[scenario.engine.kind](scenario, shares), *_replicas(scenario, shares, summary)]
    for weight, changes in sorted(options, key=lambda option: -option[0]):
        if weight >= NOTABLE_SHARE and any(new != value_of(scenario, key) for key, new in changes.items()):
            yield changes


def value_of(scenario: Scenario, key: str) -> Any:
    """The scenario's value at a key path; None within a section that is left out."""
    target: Any = scenario
    for part in key.split("."):
        target = None if target is None else getattr(target, part)
    return target


def _replicas(scenario: Scenario, share: Shares, summary: dict[str, Any]) -> Iterator[Option]:
    replicas = scenario.cluster.replicas
    if (summary["slo"]["attainment"] or 0.0) < scenario.slo.attainment:
        yield 1.0, {"cluster.replicas": replicas + 1}
        return
    waiting = sum(value for name, value in share.items() if name.startswith("queue"))
    yield waiting, {"cluster.replicas": replicas + 1}
    if replicas > 1:
        yield 1.0, {"cluster.replicas": replicas - 1}


def _dedicated(scenario: Scenario) -> Iterator[Option]:
    """Deployments that give their GPUs back between requests."""
    if scenario.cluster.dedicated.scale_to_zero_s is None:
        yield 1.0, {"cluster.dedicated.scale_to_zero_s": IDLE_S}


def _vllm(scenario: Scenario, share: Shares) -> Iterator[Option]:
    engine = _engine(scenario)
    yield from _vllm_adapters(scenario, share)
    yield share["queue_seqs"], {"engine.max_num_seqs": 2 * engine.max_num_seqs}
    if engine.num_gpu_blocks_override is None:
        yield from _more_memory(scenario, share)
    else:
        yield share["queue_kv"], {"engine.num_gpu_blocks_override": None}


def _vllm_adapters(scenario: Scenario, share: Shares) -> Iterator[Option]:
    """Slots, host cache and slot rank."""
    engine, adapters = _engine(scenario), _adapters(scenario)
    if not adapters:
        return
    stalls = share["queue_slots"] + share["load"]
    cache = "engine.max_cpu_loras"
    for factor, weight in ((2, stalls), (4, 0.9 * share["queue_slots"])):
        slots = min(factor * engine.max_loras, adapters)
        if slots > engine.max_loras:
            yield weight, {"engine.max_loras": slots, cache: max(slots, engine.max_cpu_loras)}
    if adapters > engine.max_cpu_loras:
        yield 0.95 * stalls, {cache: min(largest_host_cache(scenario), adapters)}
    if engine.max_loras // 2 > len(scenario.adapters.pinned):
        yield share["queue_kv"] + share["decode_lora"], {"engine.max_loras": engine.max_loras // 2}
    waste = rank_waste(scenario)
    listed = max((rank for rank, part in scenario.adapters.ranks.items() if part > 0), default=0)
    if waste is not None and waste.enough >= listed:  # a rank may be listed that none of a few adapters has
        yield share["decode_lora"] + share["queue_kv"], {"engine.max_lora_rank": waste.enough}


def _slora(scenario: Scenario, share: Shares) -> Iterator[Option]:
    """One pool: what its adapters and its requests lack is the same memory, unless they have a pool each."""
    engine = _engine(scenario)
    loading = engine.adapter_loading
    yield share["queue_seqs"], {"engine.running_max_req_size": 2 * engine.running_max_req_size}
    if engine.max_total_token_num is None:
        yield from _more_memory(scenario, share)
    else:
        yield share["queue_kv"], {"engine.max_total_token_num": None}
    if not _adapters(scenario):
        return
    stalls = share["queue_slots"] + share["load"]
    if not engine.unified_memory:
        yield stalls + share["queue_kv"], {"engine.unified_memory": True, "engine.pool_size_lora": 0}
        yield 0.9 * stalls, {"engine.pool_size_lora": 2 * engine.pool_size_lora}
    if not loading.overlap and not engine.artifact:
        yield stalls, {"engine.adapter_loading.overlap": True, "engine.adapter_loading.prefetch": True}


def _lorax(scenario: Scenario, share: Shares) -> Iterator[Option]:
    """Adapter memory, turns, and how eager prefills are."""
    engine, adapters = _engine(scenario), _adapters(scenario)
    yield share["queue_seqs"], {"engine.max_concurrent_requests": 2 * engine.max_concurrent_requests}
    yield share["queue_tokens"], {"engine.max_waiting_tokens": max(1, engine.max_waiting_tokens // 2)}
    if engine.max_batch_total_tokens is not None:
        yield share["queue_kv"], {"engine.max_batch_total_tokens": None}
    if not adapters:
        return
    stalls = share["queue_slots"] + share["load"]
    fraction = engine.adapter_memory_fraction
    if not engine.preloaded_adapter_ids:
        yield stalls, {"engine.adapter_memory_fraction": min(2 * fraction, 0.5)}
        yield share["queue_kv"], {"engine.adapter_memory_fraction": fraction / 2}
    if not engine.host_cache:
        yield 0.95 * share["load"], {"engine.host_cache": True}
    yield 0.9 * share["queue_slots"], {"engine.adapter_cycle_time_s": engine.adapter_cycle_time_s / 2}
    if adapters > engine.max_active_adapters:
        yield 0.98 * stalls, {"engine.max_active_adapters": min(2 * engine.max_active_adapters, adapters)}


def _sglang(scenario: Scenario, share: Shares) -> Iterator[Option]:
    """Slots, seats and the static share of memory."""
    engine, adapters = _engine(scenario), _adapters(scenario)
    yield share["queue_seqs"], {"engine.max_running_requests": 2 * engine.max_running_requests}
    if engine.mem_fraction_static < FULL_GPU:
        yield share["queue_kv"], {"engine.mem_fraction_static": min(engine.mem_fraction_static + 0.05, FULL_GPU)}
    if not adapters:
        return
    stalls, slots, loaded = share["queue_slots"] + share["load"], engine.max_loras_per_batch, engine.max_loaded_loras
    for factor, weight in ((2, stalls), (4, 0.9 * share["queue_slots"])):
        more = min(factor * slots, adapters + 1)  # the base model takes one
        if more > slots:
            yield weight, _sglang_slots(more, loaded)
    if slots // 2 > max(1, len(scenario.adapters.pinned)):  # one for the base model
        yield share["queue_kv"] + share["decode_lora"], {"engine.max_loras_per_batch": slots // 2}
    if loaded is not None and loaded < adapters:
        yield 0.95 * stalls, {"engine.max_loaded_loras": min(2 * loaded, adapters)}
    if not engine.adapter_loading.overlap and (loaded or adapters) <= 2 * slots:
        yield 0.9 * stalls, {"engine.adapter_loading.overlap": True}


def _sglang_slots(slots: int, loaded: int | None) -> Changes:
    """max_loaded_loras may not be below the slots."""
    changes: Changes = {"engine.max_loras_per_batch": slots}
    return changes if loaded is None else changes | {"engine.max_loaded_loras": max(slots, loaded)}


def _punica(scenario: Scenario, share: Shares) -> Iterator[Option]:
    yield share["queue_seqs"], {"engine.max_batch_size": 2 * _engine(scenario).max_batch_size}
    yield from _buffers(scenario, share)
    yield from _more_memory(scenario, share)


def _baseline(scenario: Scenario, share: Shares) -> Iterator[Option]:
    yield share["queue_seqs"], {"engine.max_num_seqs": 2 * _engine(scenario).max_num_seqs}
    yield from _more_memory(scenario, share)


def _sequential(scenario: Scenario, share: Shares) -> Iterator[Option]:
    yield from _baseline(scenario, share)
    yield from _buffers(scenario, share)


def _turns(scenario: Scenario, share: Shares) -> Iterator[Option]:
    """One adapter at a time: how long its turn is."""
    after = _engine(scenario).switch_after
    yield from _baseline(scenario, share)
    if _adapters(scenario) > 1:
        yield share["queue_slots"], {"engine.switch_after": 2 * after}
        yield 0.99 * share["queue_slots"], {"engine.switch_after": max(1, after // 2)}


def _grouped(scenario: Scenario, share: Shares) -> Iterator[Option]:
    yield from _turns(scenario, share)
    now = scenario.engine.max_loras
    buffers = min(2 * now, _adapters(scenario))
    if buffers > now:
        yield share["load"], {"engine.max_loras": buffers}


def _buffers(scenario: Scenario, share: Shares) -> Iterator[Option]:
    """Adapters that stay on the GPU."""
    now, adapters = scenario.engine.max_loras, _adapters(scenario)
    if adapters > now:
        yield share["queue_slots"] + share["load"], {"engine.max_loras": min(2 * now, adapters)}
    if adapters and now // 2 > len(scenario.adapters.pinned):
        yield share["queue_kv"], {"engine.max_loras": now // 2}


def _more_memory(scenario: Scenario, share: Shares) -> Iterator[Option]:
    if scenario.engine.gpu_memory_utilization < FULL_GPU:
        yield share["queue_kv"], {"engine.gpu_memory_utilization": FULL_GPU}


def _engine(scenario: Scenario) -> Any:
    """The settings of whatever kind the caller knows it to be."""
    return scenario.engine


def _adapters(scenario: Scenario) -> int:
    """Adapters that the engine serves as such."""
    return scenario.adapters.count if scenario.engine.enable_lora else 0


_OPTIONS: MappingProxyType[str, Callable[[Scenario, Shares], Iterator[Option]]] = MappingProxyType(
    {
        "vllm": _vllm,
        "slora": _slora,
        "lorax": _lorax,
        "punica": _punica,
        "sglang": _sglang,
        "grouped": _grouped,
        "sequential": _sequential,
        "merged-swap": _turns,
    }
)
