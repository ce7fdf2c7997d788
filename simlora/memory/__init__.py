"""Memory of a replica: the byte ledger of its GPUs, pools, adapter tiers with eviction, and copies between tiers.

Plain objects without a clock: callers pass now_s.
"""

from simlora.memory.advice import Waste, rank_waste, slot_waste
from simlora.memory.base import NO_LIMIT, AdapterRoom, Ledger
from simlora.memory.copy_engine import Completion, CopyEngine, CopyMode, Stage, Started
from simlora.memory.engine_ledger import EngineLedger, Part
from simlora.memory.eviction import EvictionPolicy, Lru, WeightedLru, make_policy
from simlora.memory.fit import (
    AnyLedger,
    build_ledger,
    fits,
    largest_max_loras,
    require_fit,
    scenario_shortage,
    shortage,
    vllm_ledger,
)
from simlora.memory.ledger import MemoryLedger, compute_ledger
from simlora.memory.paging import ContiguousPool, Fragmentation, PagedPool
from simlora.memory.pools import ADAPTER, KV, RESERVED, BlockPool, Pool
from simlora.memory.resident import ResidentSet
from simlora.memory.rows import LedgerRow, binding, ledger_rows
from simlora.memory.settings import MemorySettings, settings_of
from simlora.memory.tiers import Activation, AdapterTiers

__all__ = [
    "ADAPTER",
    "KV",
    "NO_LIMIT",
    "RESERVED",
    "Activation",
    "AdapterRoom",
    "AdapterTiers",
    "AnyLedger",
    "BlockPool",
    "Completion",
    "ContiguousPool",
    "CopyEngine",
    "CopyMode",
    "EngineLedger",
    "EvictionPolicy",
    "Fragmentation",
    "Ledger",
    "LedgerRow",
    "Lru",
    "MemoryLedger",
    "MemorySettings",
    "PagedPool",
    "Part",
    "Pool",
    "ResidentSet",
    "Stage",
    "Started",
    "Waste",
    "WeightedLru",
    "binding",
    "build_ledger",
    "compute_ledger",
    "fits",
    "largest_max_loras",
    "ledger_rows",
    "make_policy",
    "rank_waste",
    "require_fit",
    "scenario_shortage",
    "settings_of",
    "shortage",
    "slot_waste",
    "vllm_ledger",
]
