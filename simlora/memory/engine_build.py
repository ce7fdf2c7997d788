"""Which ledger belongs to which kind of engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from simlora.errors import ConfigError
from simlora.memory.engine_inputs import MemoryInputs
from simlora.memory.engine_ledger import EngineLedger
from simlora.memory.lorax import lorax_ledger
from simlora.memory.naive import naive_ledger
from simlora.memory.sglang import sglang_ledger
from simlora.memory.shortage import gb
from simlora.memory.slora import slora_ledger
from simlora.scenario.load import changed

if TYPE_CHECKING:
    from simlora.scenario.root import Scenario

BUILDERS: MappingProxyType[str, Callable[[MemoryInputs], EngineLedger]] = MappingProxyType(
    {
        "slora": slora_ledger,
        "lorax": lorax_ledger,
        "sglang": sglang_ledger,
        "punica": naive_ledger,
        "grouped": naive_ledger,
        "sequential": naive_ledger,
        "merged-swap": naive_ledger,
    }
)


def engine_ledger(inputs: MemoryInputs) -> EngineLedger:
    """The ledger, whether or not it fits. vLLM has its own: memory/ledger.py."""
    return BUILDERS[inputs.engine.kind](inputs)


def variant(scenario: Scenario, changes: Mapping[str, Any]) -> EngineLedger | None:
    """The ledger with other values, defaults resolved anew; None if the scenario is refused."""
    try:
        return engine_ledger(MemoryInputs.of(changed(scenario, changes)))
    except ConfigError:
        return None


def fits_with(scenario: Scenario, changes: Mapping[str, Any]) -> bool:
    """Whether the scenario would start with other values."""
    ledger = variant(scenario, changes)
    return ledger is not None and ledger.fits


def kv_state(ledger: EngineLedger) -> str:
    """What there is for the KV cache, for messages."""
    if ledger.available_bytes <= 0:
        return f"{gb(-ledger.available_bytes)} are missing before the KV cache gets anything"
    if ledger.headroom_bytes < 0:
        return f"the GPU's {gb(ledger.total_bytes)} lack {gb(-ledger.headroom_bytes)}"
    return (
        f"the KV cache holds {ledger.usable_kv_tokens} tokens, fewer than the {ledger.needed_kv_tokens} that it needs"
    )
