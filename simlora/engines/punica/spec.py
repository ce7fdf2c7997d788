"""Punica as the rest of simlora sees it."""

from __future__ import annotations

from collections.abc import Iterator

from simlora.engines.options import buffers, more_memory
from simlora.engines.punica.build import make_engine
from simlora.engines.shortages import common, lowered
from simlora.engines.spec import EngineSpec, Limits, Option, Shares
from simlora.engines.whole_adapters import buffer_words, largest_rank, projection_loads
from simlora.latency.profile import EngineProfile
from simlora.memory.buffers import buffer_ledger
from simlora.memory.inputs import MemoryInputs
from simlora.memory.ledger import EngineLedger
from simlora.memory.shortage import SLOTS, Shortage
from simlora.scenario.engines.punica import PunicaConfig
from simlora.scenario.lora_modules import ALL_LINEAR
from simlora.scenario.root import Scenario


def punica_profile(engine: PunicaConfig) -> EngineProfile:
    """SGMV for prompts and decodes, no graphs, host and GPU alternating. Source: the code (591b598)."""
    loads = projection_loads(engine)
    return EngineProfile(
        "punica", "alternating", "sgmv", "sgmv", loads, modules=ALL_LINEAR, torch_launches=15
    ).with_kernels(engine.kernels)


def _ledger(scenario: Scenario) -> EngineLedger:
    """All seven linear layers are in every buffer."""
    return buffer_ledger(MemoryInputs.of(scenario), "adapter buffers", "pages", ALL_LINEAR)


def _shortages(scenario: Scenario, ledger: EngineLedger) -> Iterator[Shortage | None]:
    yield lowered(scenario, ledger, SLOTS, "max_loras")
    yield from common(scenario, ledger, one_gpu=True)


def _options(scenario: Scenario, share: Shares) -> Iterator[Option]:
    yield share["queue_seqs"], {"engine.max_batch_size": 2 * scenario.engine.max_num_seqs}
    yield from buffers(scenario, share)
    yield from more_memory(scenario, share)


SPEC = EngineSpec(
    kind="punica",
    build=make_engine,
    ledger=_ledger,
    shortages=_shortages,
    profile=punica_profile,
    options=_options,
    adapter_memory=buffer_words,
    slot_rank=largest_rank,
    limits=Limits(seqs="max_batch_size", tokens=None, decodes_count=False),
    modules=ALL_LINEAR,
    loads_first=True,
)
