"""Memory that a vLLM configuration spends without need, in KV tokens and in time, and changes worth trying on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from simlora.engines.options import more_memory, served_adapters
from simlora.engines.pricing import scenario_latency
from simlora.engines.spec import Option, Shares
from simlora.engines.vllm.ledger import VllmLedger, vllm_ledger
from simlora.memory.shortage import gb
from simlora.scenario.engines.vllm import VllmConfig, largest_host_cache
from simlora.scenario.root import Scenario

TYPICAL_BATCH = 32
"""Decoding requests for which the price in time is stated."""


class Waste(NamedTuple):
    """A flag above what the adapters need, and what its smallest sufficient value would free on each GPU."""

    key: str
    value: int
    enough: int
    kv_tokens: int
    slot_bytes: int


def rank_waste(scenario: Scenario, ledger: VllmLedger | None = None) -> Waste | None:
    """max_lora_rank above the smallest rank that vLLM allows and that holds every adapter; None if it is that rank."""
    engine, used = scenario.engine, _ranks(scenario)
    assert isinstance(engine, VllmConfig)
    if not engine.enable_lora or not used:
        return None
    enough = min(rank for rank in engine.rules.defaults.allowed_lora_ranks if rank >= max(used))
    if enough >= engine.max_lora_rank:
        return None
    return _waste(ledger or vllm_ledger(scenario), "max_lora_rank", engine.max_lora_rank, enough)


def slot_waste(scenario: Scenario, ledger: VllmLedger | None = None) -> Waste | None:
    """More slots than adapters; None if there are not."""
    engine, count = scenario.engine, scenario.adapters.count
    if not engine.enable_lora or not 0 < count < engine.max_loras:
        return None
    return _waste(ledger or vllm_ledger(scenario), "max_loras", engine.max_loras, count)


def memory_advice(scenario: Scenario, ledger: VllmLedger) -> tuple[str, ...]:
    """One sentence per flag that takes KV memory without need; an oversized rank also costs time in every step."""
    lines = []
    rank, slots = rank_waste(scenario, ledger), slot_waste(scenario, ledger)
    if rank:
        lines.append(
            f"engine.max_lora_rank {rank.value} is above the largest adapter rank {max(_ranks(scenario))}, and every "
            f"slot is padded to it: {rank.enough} would free {_gain(rank)} on each GPU"
        )
    if slots:
        lines.append(
            f"engine.max_loras {slots.value} is above the {slots.enough} adapters there are: "
            f"{slots.enough} would free {_gain(slots)} on each GPU"
        )
    if rank:
        adapters = min(TYPICAL_BATCH, scenario.engine.max_loras, scenario.adapters.count)
        extra_s = scenario_latency(scenario).decode_extra_s(TYPICAL_BATCH, adapters, rank.value, rank.enough)
        lines.append(
            f"max_lora_rank {rank.value} instead of {rank.enough} also adds {extra_s * 1e3:.2f} ms to a decode step "
            f"of {TYPICAL_BATCH} requests over {adapters} adapters"
        )
    return tuple(lines)


def _waste(ledger: VllmLedger, field: str, value: int, enough: int) -> Waste:
    lean = ledger.with_settings(**{field: enough})
    tokens = (lean.fitting_kv_blocks - ledger.fitting_kv_blocks) * ledger.settings.block_size
    return Waste(f"engine.{field}", value, enough, tokens, ledger.slots_bytes - lean.slots_bytes)


def _gain(waste: Waste) -> str:
    return f"{gb(waste.slot_bytes)}, or {waste.kv_tokens} KV tokens,"


def _ranks(scenario: Scenario) -> list[int]:
    return [rank for rank, count in scenario.adapters.rank_counts().items() if count > 0]


def options(scenario: Scenario, share: Shares) -> Iterator[Option]:
    engine = scenario.engine
    assert isinstance(engine, VllmConfig)
    yield from _adapter_options(scenario, share)
    yield share["queue_seqs"], {"engine.max_num_seqs": 2 * engine.max_num_seqs}
    if engine.num_gpu_blocks_override is None:
        yield from more_memory(scenario, share)
    else:
        yield share["queue_kv"], {"engine.num_gpu_blocks_override": None}


def _adapter_options(scenario: Scenario, share: Shares) -> Iterator[Option]:
    """Slots, host cache and slot rank."""
    engine, adapters = scenario.engine, served_adapters(scenario)
    assert isinstance(engine, VllmConfig)
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
