"""Memory advice with its price in time: what an oversized max_lora_rank costs in KV tokens and in milliseconds."""

from __future__ import annotations

from simlora.engines.advice import advice, rank_waste
from simlora.engines.fit import AnyLedger
from simlora.engines.vllm.ledger import VllmLedger
from simlora.latency.step_latency import StepLatency
from simlora.latency.store import choose_calibration
from simlora.scenario.root import Scenario

TYPICAL_BATCH = 32
"""Decoding requests for which the price in time is stated."""


def memory_advice(scenario: Scenario, ledger: AnyLedger) -> tuple[str, ...]:
    """One sentence per flag that takes memory without need; an oversized rank also costs time in every step."""
    lines = list(advice(scenario, ledger))
    waste = rank_waste(scenario, ledger) if isinstance(ledger, VllmLedger) else None
    if waste is not None:
        calibration = choose_calibration(scenario.gpu_spec, scenario.engine, scenario.calibration)
        latency = StepLatency(
            scenario.model_spec, scenario.gpu_spec, scenario.engine, calibration, slot_modules=scenario.slot_modules
        )
        adapters = min(TYPICAL_BATCH, scenario.engine.max_loras, scenario.adapters.count)
        extra_s = latency.decode_extra_s(TYPICAL_BATCH, adapters, waste.value, waste.enough)
        lines.append(
            f"max_lora_rank {waste.value} instead of {waste.enough} also adds {extra_s * 1e3:.2f} ms to a decode step "
            f"of {TYPICAL_BATCH} requests over {adapters} adapters"
        )
    return tuple(lines)
