"""The parts of an S-LoRA replica."""

from __future__ import annotations

from functools import lru_cache

from simlora.engines.base import Capacity
from simlora.engines.inputs import Inputs
from simlora.engines.overlap_loading import overlap_loading
from simlora.engines.slora.abort import AbortQueue
from simlora.engines.slora.admission import SloraLimits
from simlora.engines.slora.engine import SloraEngine
from simlora.engines.slora.fair import FairQueue
from simlora.engines.slora.memory import pool_geometry
from simlora.engines.slora.pool import SloraPool
from simlora.engines.slora.queues import ClusterQueue, FcfsQueue, SloraQueue
from simlora.scenario.engines.slora import SloraConfig


def make_engine(inputs: Inputs) -> SloraEngine:
    """One replica. Its GPU holds no adapters at the start: all of them are in host memory."""
    engine, ledger = inputs.scenario.engine, inputs.ledger
    assert isinstance(engine, SloraConfig)
    loading = engine.adapter_loading
    limits = SloraLimits(
        kv_units=ledger.kv_units,
        unit_tokens=ledger.kv_unit_tokens,
        adapter_units=ledger.adapter_room.units,
        unified=engine.unified_memory,
        cached=not engine.artifact,
        charged=engine.artifact or engine.unified_memory,
        overlap=loading.overlap,
        prefetch=loading.prefetch,
        running_max_req_size=engine.running_max_req_size,
        batch_max_tokens=engine.batch_max_tokens,
    )
    units = lru_cache(maxsize=None)(pool_geometry(inputs.scenario).adapter_units)
    pool = SloraPool(limits, units, overlap_loading(inputs) if loading.overlap else None)
    capacity = Capacity(ledger.kv_units, ledger.kv_unit_tokens, ledger.adapter_room.slots)
    return SloraEngine(limits, capacity, units, make_queue(engine), pool)


def make_queue(engine: SloraConfig) -> SloraQueue:
    """The queue by the settings, in the order in which the published code looks at them."""
    if engine.scheduler == "vtc":
        return FairQueue()
    if engine.batch_num_adapters is not None:
        return ClusterQueue(engine.batch_num_adapters)
    if engine.early_abort:
        return AbortQueue(engine.abort_after_s)
    return FcfsQueue()
