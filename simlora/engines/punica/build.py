"""The parts of a Punica replica."""

from __future__ import annotations

from simlora.engines.inputs import Inputs
from simlora.engines.overlap_loading import overlap_loading
from simlora.engines.punica.adapters import PunicaAdapters
from simlora.engines.punica.engine import PunicaEngine, PunicaLimits
from simlora.memory.residents import ResidentSet
from simlora.scenario.engines.punica import PunicaConfig


def make_engine(inputs: Inputs) -> PunicaEngine:
    """One GPU. All adapters are registered in host memory."""
    engine, ledger = inputs.scenario.engine, inputs.ledger
    assert isinstance(engine, PunicaConfig)
    limits = PunicaLimits(
        max_batch_size=engine.max_batch_size,
        kv_pages=ledger.kv_units,
        page_tokens=ledger.kv_unit_tokens,
        buffers=ledger.adapter_room.slots,
        prefetch=engine.adapter_loading.prefetch,
    )
    return PunicaEngine(limits, _adapters(inputs, limits, engine) if limits.buffers else None)


def _adapters(inputs: Inputs, limits: PunicaLimits, engine: PunicaConfig) -> PunicaAdapters:
    buffers = ResidentSet(limits.buffers)
    for adapter in inputs.initial.gpu[-limits.buffers :]:
        buffers.add(adapter, 0.0)
    return PunicaAdapters(buffers, overlap_loading(inputs) if engine.adapter_loading.overlap else None)
