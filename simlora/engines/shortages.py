"""Why a replica does not start, as far as several engines have it in common; each engine's memory.py says in what
order.

Every proposal was tried: the scenario starts with that one value, defaults that depend on it resolved anew. Two are
named though something else may bind as well: a share of memory that the GPU cannot give, and an adapter that nothing
makes room for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from simlora.engines.fit import fits_with, variant
from simlora.memory.ledger import SLACK, AdapterNeed, EngineLedger
from simlora.memory.shortage import (
    ADAPTERS,
    CONTEXT,
    OVERRIDE,
    PREFILL,
    SLOTS,
    WEIGHTS,
    Shortage,
    gb,
    largest_that,
)
from simlora.scenario.root import Scenario

_MAX_TP = 64


def common(scenario: Scenario, ledger: EngineLedger, one_gpu: bool = False) -> Iterator[Shortage | None]:
    """What is left to try, and what is wrong in any case. one_gpu: the engine has no tensor parallelism."""
    yield _context(scenario, ledger)
    if ledger.kv_units > 0 and ledger.headroom_bytes >= 0 and ledger.adapter_need and not ledger.adapters_fit:
        yield _rank(ledger.adapter_need, largest_rank(scenario), None)
    yield _weights(scenario, ledger, one_gpu)


def lowered(scenario: Scenario, ledger: EngineLedger, term: str, key: str) -> Shortage | None:
    """A setting that takes memory from the KV cache: lowering it may help."""
    value = getattr(scenario.engine, key)
    low = _lowest(scenario, term)
    largest = largest_that(low, value - 1, lambda smaller: fits_with(scenario, {f"engine.{key}": smaller}))
    if largest is None:
        return None
    what = ledger.activation_bytes if term == PREFILL else ledger.adapter_area_bytes
    verb = "bind" if term == SLOTS else "binds"
    text = (
        f"{term} {verb}: {key} {value} takes {gb(what)} on each GPU beside {gb(ledger.weight_bytes)} of "
        f"weights, and the engine may use {gb(ledger.budget_bytes)}; {kv_state(ledger)}; "
        f"largest {key} that fits: {largest}"
    )
    return Shortage(term, f"engine.{key}", value, largest, text)


def _lowest(scenario: Scenario, term: str) -> int:
    """The lowest value that the engine takes: prompts are not split, and pinned adapters leave a slot free."""
    if term == PREFILL:
        return scenario.engine.max_model_len
    return len(scenario.adapters.pinned) + 1 if term == SLOTS else 0


def overridden(scenario: Scenario, ledger: EngineLedger, key: str) -> Shortage | None:
    """A number of KV tokens that the user gave, where leaving it out helps."""
    engine: Any = scenario.engine
    value, path = getattr(engine, key), f"engine.{key}"
    free = None if value is None else variant(scenario, {path: None})
    if free is None or not free.fits:
        return None
    least = max(_least_pool(ledger), engine.max_model_len)
    unit = ledger.kv_unit_tokens
    most = largest_that(
        -(-least // unit), ledger.total_bytes // ledger.kv_unit_bytes, lambda n: fits_with(scenario, {path: n * unit})
    )
    largest = free.usable_kv_tokens if most is None else most * unit
    text = (
        f"between {least} (max_model_len {engine.max_model_len}, or the largest adapter) and {largest} (what the GPU "
        f"holds); null takes the {free.usable_kv_tokens} that fit the engine's share"
    )
    return Shortage(OVERRIDE, path, value, largest, text)


def _least_pool(ledger: EngineLedger) -> int:
    """Tokens of a shared pool that is larger than the largest adapter."""
    if ledger.adapter_need is None or not ledger.adapter_room.shared:
        return 0
    return (ledger.adapter_need.needed + 1) * ledger.kv_unit_tokens


def rank_shortage(scenario: Scenario, ledger: EngineLedger) -> Shortage | None:
    """The largest adapter cannot be loaded: the largest rank that can."""
    need, rank = ledger.adapter_need, largest_rank(scenario)
    if need is None or ledger.adapters_fit:
        return None
    largest = largest_that(1, rank - 1, lambda smaller: fits_with(scenario, {"adapters.ranks": {smaller: 1.0}}))
    return None if largest is None else _rank(need, rank, largest)


def _rank(need: AdapterNeed, rank: int, largest: int | None) -> Shortage:
    hint = f"; largest rank that fits: {largest}" if largest else ""
    text = f"adapter memory binds: one adapter takes {need.needed} {need.unit}, and all can get {need.limit}{hint}"
    return Shortage(ADAPTERS, "adapters.ranks", rank, largest, text)


def largest_rank(scenario: Scenario) -> int:
    """The largest rank of an adapter."""
    return max(rank for rank, count in scenario.adapters.rank_counts().items() if count > 0)


def beside_bytes(ledger: EngineLedger) -> int:
    """What the budget does not pay for and the engine needs."""
    return sum(part.bytes for part in ledger.parts if not part.in_budget and part.role != SLACK)


def kv_state(ledger: EngineLedger) -> str:
    """What there is for the KV cache, for messages."""
    if ledger.available_bytes <= 0:
        return f"{gb(-ledger.available_bytes)} are missing before the KV cache gets anything"
    if ledger.headroom_bytes < 0:
        return f"the GPU's {gb(ledger.total_bytes)} lack {gb(-ledger.headroom_bytes)}"
    return (
        f"the KV cache holds {ledger.usable_kv_tokens} tokens, fewer than the {ledger.needed_kv_tokens} that it needs"
    )


def _context(scenario: Scenario, ledger: EngineLedger) -> Shortage | None:
    """Prompts need not be that long; a prefill that is sized for the longest one shrinks with it."""
    value = scenario.engine.max_model_len
    largest = largest_that(1, value - 1, lambda length: fits_with(scenario, {"engine.max_model_len": length}))
    if largest is None:
        return None
    text = f"context length binds: {kv_state(ledger)}; largest max_model_len that fits: {largest}"
    return Shortage(CONTEXT, "engine.max_model_len", value, largest, text)


def _weights(scenario: Scenario, ledger: EngineLedger, one_gpu: bool) -> Shortage:
    engine: Any = scenario.engine
    degree = 2 * engine.tensor_parallel_size
    while degree <= _MAX_TP and not fits_with(scenario, {"engine.tensor_parallel_size": degree}):
        degree *= 2
    enough = degree if degree <= _MAX_TP else None
    hint = f"smallest tensor_parallel_size that fits: {enough}" if enough else "no tensor_parallel_size fits"
    if one_gpu:
        hint = f"{engine.kind} runs on one GPU: a larger GPU or a smaller model"
    text = (
        f"weights bind: {gb(ledger.weight_bytes)} on each GPU and {gb(ledger.activation_bytes)} of activations, and "
        f"the engine may use {gb(ledger.budget_bytes)}; {hint}"
    )
    return Shortage(WEIGHTS, "engine.tensor_parallel_size", engine.tensor_parallel_size, enough, text)
