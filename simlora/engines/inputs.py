"""What a simulation is built from."""

from __future__ import annotations

from dataclasses import dataclass

from simlora.latency.engine_latency import EngineLatency
from simlora.memory.ledger import Ledger
from simlora.scenario.root import Scenario
from simlora.workload.adapter_table import AdapterTable
from simlora.workload.request_table import RequestTable


@dataclass(frozen=True)
class InitialAdapters:
    """Adapters resident when the run begins, oldest first, besides the pinned ones."""

    gpu: tuple[int, ...] = ()
    host: tuple[int, ...] = ()


@dataclass(frozen=True)
class Inputs:
    """Everything a simulation is built from."""

    scenario: Scenario
    adapters: AdapterTable
    requests: RequestTable
    ledger: Ledger
    latency: EngineLatency
    initial: InitialAdapters
    dedicated: Scenario | None = None
    """With one deployment per tenant, the scenario as the user wrote it; `scenario` is then that of a deployment."""
