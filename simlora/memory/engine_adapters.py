"""Adapters that do not fit where an engine other than vLLM keeps them, or that leave the KV cache too little."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simlora.memory.engine_build import fits_with, kv_state
from simlora.memory.engine_ledger import AdapterNeed, EngineLedger
from simlora.memory.shortage import ADAPTERS, Shortage, gb, largest_that

if TYPE_CHECKING:
    from simlora.scenario.root import Scenario

_FRACTION, _ROWS = "engine.adapter_memory_fraction", "engine.pool_size_lora"


def adapter_shortage(scenario: Scenario, ledger: EngineLedger) -> Shortage | None:
    """The largest adapter cannot be loaded: the smallest area, or the largest rank, that would do."""
    engine: Any = scenario.engine
    need = ledger.adapter_need
    if need is None or ledger.adapters_fit:
        return None
    rank = _largest_rank(scenario)
    if engine.kind == "lorax":
        least = _least_thousandths(ledger) / 1000
        if least < 1 and fits_with(scenario, {_FRACTION: least}):
            text = (
                f"adapter memory binds: a file of rank {rank} has {gb(need.needed)}, and {gb(need.limit)} are kept for "
                f"adapters; smallest adapter_memory_fraction that holds it: {least:g}"
            )
            return Shortage(ADAPTERS, _FRACTION, engine.adapter_memory_fraction, least, text)
    elif not engine.unified_memory:
        rows = need.needed * ledger.kv_unit_tokens
        if fits_with(scenario, {_ROWS: rows}):
            text = (
                f"adapter memory binds: an adapter of rank {rank} takes {need.needed} {need.unit}, and with "
                f"unified_memory: false adapters get {need.limit}; smallest pool_size_lora that holds it: {rows}"
            )
            return Shortage(ADAPTERS, _ROWS, engine.pool_size_lora, rows, text)
    largest = largest_that(1, rank - 1, lambda smaller: fits_with(scenario, {"adapters.ranks": {smaller: 1.0}}))
    return None if largest is None else _rank(need, rank, largest)


def unholdable_rank(scenario: Scenario, ledger: EngineLedger) -> Shortage | None:
    """The largest adapter cannot be loaded, and no single change mends that."""
    need = ledger.adapter_need
    return None if need is None or ledger.adapters_fit else _rank(need, _largest_rank(scenario), None)


def fraction_shortage(scenario: Scenario, ledger: EngineLedger) -> Shortage | None:
    """LoRAX: a smaller share for adapters leaves more to the KV cache."""
    engine: Any = scenario.engine
    if engine.kind != "lorax" or engine.preloaded_adapter_ids:
        return None
    value = engine.adapter_memory_fraction
    high = int(value * 1000 - 1e-9)
    best = largest_that(_least_thousandths(ledger), high, lambda part: fits_with(scenario, {_FRACTION: part / 1000}))
    if best is None:
        return None
    text = (
        f"adapter memory binds: {gb(ledger.adapter_area_bytes)} are kept for adapters on each GPU; "
        f"{kv_state(ledger)}; largest adapter_memory_fraction that fits: {best / 1000:g}"
    )
    return Shortage(ADAPTERS, _FRACTION, value, best / 1000, text)


def _rank(need: AdapterNeed, rank: int, largest: int | None) -> Shortage:
    hint = f"; largest rank that fits: {largest}" if largest else ""
    text = f"adapter memory binds: one adapter takes {need.needed} {need.unit}, and all can get {need.limit}{hint}"
    return Shortage(ADAPTERS, "adapters.ranks", rank, largest, text)


def _largest_rank(scenario: Scenario) -> int:
    return max(rank for rank, count in scenario.adapters.rank_counts().items() if count > 0)


def _least_thousandths(ledger: EngineLedger) -> int:
    """Share of the GPU that holds the largest file, in thousandths, rounded up."""
    return 0 if ledger.adapter_need is None else -(-1000 * ledger.adapter_need.needed // ledger.total_bytes)
