"""Memory that a configuration spends without need, in KV tokens. What it costs in time is not known here."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from simlora.engines.fit import AnyLedger, vllm_ledger, with_settings
from simlora.engines.slora.fragmentation import ARRIVALS, study
from simlora.engines.vllm.ledger import VllmLedger
from simlora.memory.ledger import EngineLedger
from simlora.memory.shortage import gb
from simlora.scenario.engines.slora import SloraConfig

if TYPE_CHECKING:
    from simlora.scenario.root import Scenario


class Waste(NamedTuple):
    """A flag above what the adapters need, and what its smallest sufficient value would free on each GPU."""

    key: str
    value: int
    enough: int
    kv_tokens: int
    slot_bytes: int


def rank_waste(scenario: Scenario, ledger: VllmLedger | None = None) -> Waste | None:
    """max_lora_rank above the smallest rank that vLLM allows and that holds every adapter; None if it is that rank,
    and for other engines."""
    engine, used = scenario.engine, _ranks(scenario)
    if engine.kind != "vllm" or not engine.enable_lora or not used:
        return None
    enough = min(rank for rank in scenario.rules.allowed_lora_ranks if rank >= max(used))
    if enough >= engine.max_lora_rank:
        return None
    return _waste(ledger or vllm_ledger(scenario), "max_lora_rank", engine.max_lora_rank, enough)


def slot_waste(scenario: Scenario, ledger: VllmLedger | None = None) -> Waste | None:
    """More of vLLM's slots than adapters; None if there are not."""
    engine, count = scenario.engine, scenario.adapters.count
    if engine.kind != "vllm" or not engine.enable_lora or not 0 < count < engine.max_loras:
        return None
    return _waste(ledger or vllm_ledger(scenario), "max_loras", engine.max_loras, count)


def advice(scenario: Scenario, ledger: AnyLedger | None = None) -> tuple[str, ...]:
    """One sentence per flag that takes KV memory without need, and for S-LoRA what its unit of allocation loses."""
    if isinstance(scenario.engine, SloraConfig):
        return _pool_advice(scenario, scenario.engine, ledger)
    if scenario.engine.kind != "vllm":
        return ()
    ledger = ledger if isinstance(ledger, VllmLedger) else vllm_ledger(scenario)
    lines = []
    rank = rank_waste(scenario, ledger)
    if rank:
        lines.append(
            f"engine.max_lora_rank {rank.value} is above the largest adapter rank {max(_ranks(scenario))}, and every "
            f"slot is padded to it: {rank.enough} would free {_gain(rank)} on each GPU"
        )
    slots = slot_waste(scenario, ledger)
    if slots:
        lines.append(
            f"engine.max_loras {slots.value} is above the {slots.enough} adapters there are: "
            f"{slots.enough} would free {_gain(slots)} on each GPU"
        )
    return tuple(lines)


def _pool_advice(scenario: Scenario, engine: SloraConfig, ledger: AnyLedger | None) -> tuple[str, ...]:
    found = study(scenario, ledger) if isinstance(ledger, EngineLedger) else None
    if found is None:
        return ()
    unit = "rows" if engine.page == "row" else f"{engine.page} pages"
    return (
        f"fragmentation: {unit} lose {found.paged_lost:.1%} to rounding; contiguous pieces would scatter "
        f"{found.contiguous_lost:.0%} of the free memory over smaller gaps and evict {found.contiguous_evictions:.2f} "
        f"pieces per arrival though enough was free ({ARRIVALS:,} adapters and requests in turn, a full pool)",
    )


def _waste(ledger: VllmLedger, field: str, value: int, enough: int) -> Waste:
    lean = with_settings(ledger, **{field: enough})
    tokens = (lean.fitting_kv_blocks - ledger.fitting_kv_blocks) * ledger.settings.block_size
    return Waste(f"engine.{field}", value, enough, tokens, ledger.slots_bytes - lean.slots_bytes)


def _gain(waste: Waste) -> str:
    return f"{gb(waste.slot_bytes)}, or {waste.kv_tokens} KV tokens,"


def _ranks(scenario: Scenario) -> list[int]:
    return [rank for rank, count in scenario.adapters.rank_counts().items() if count > 0]
