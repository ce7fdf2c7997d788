"""Why an engine's figures are what they are: what binds, its slots, loads, kernels and memory, each in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from simlora.engines.registry import engine_spec
from simlora.results.shares import CATEGORIES
from simlora.scenario.root import Scenario

NOTABLE = 0.01
"""A share from which something is mentioned."""
KERNELS = {
    "padded": "Triton kernels over padded slots",
    "sgmv": "SGMV over segments of one rank",
    "bgmv": "BGMV, weights read again for each token",
    "mbgmv": "MBGMV and MBGMM at each adapter's own rank",
    "mbgmm": "MBGMM at each adapter's own rank",
    "csgmv": "chunked SGMV at each adapter's own rank",
    "padded-bmm": "gather and batched matmul at the largest rank",
    "grouped-gemm": "grouped GEMM on full tiles",
    "loop": "two GEMMs per adapter and projection",
    "simlora": "simlora's own Triton kernels",
}


def reasons(summary: dict[str, Any], scenario: Scenario, kv_tokens: int) -> tuple[str, ...]:
    """Sentences, the most telling first."""
    return tuple(_sentences(summary, scenario, kv_tokens))


def _sentences(summary: dict[str, Any], scenario: Scenario, kv_tokens: int) -> Iterator[str]:
    binding, shares = summary["bottleneck"]["binding"], summary["bottleneck"]["shares"]
    if binding is not None:
        yield f"most request time goes to {CATEGORIES[binding].phrase} ({shares[binding]:.0%})"
    yield from _lost(summary)
    if scenario.cluster.topology == "dedicated":
        busy = summary["gpu"]["busy_fraction"] or 0.0
        yield f"{len(summary['replicas']):,} deployments of a whole model each, busy {_percent(busy)} of the time"
    else:
        yield f"adapters: {engine_spec(scenario.engine.kind).adapter_memory(scenario)}{_hits(summary)}"
        yield from _loads(summary)
        yield from _kernels(summary, scenario)
    usage = summary["memory"]["kv_usage_max"]
    used = "" if usage is None else f", at most {_percent(usage)} in use"
    preempted = summary["memory"]["preemptions"]
    yield f"memory: KV cache for {kv_tokens:,} tokens a replica{used}" + (
        f"; {preempted:,} preemptions" if preempted else ""
    )


def _lost(summary: dict[str, Any]) -> Iterator[str]:
    counts = summary["requests"]
    for name in ("rejected", "unfinished"):
        if counts[name]:
            yield f"{counts[name]:,} of {counts['offered']:,} requests {name}"


def _hits(summary: dict[str, Any]) -> str:
    rate = summary["adapters"]["gpu_hit_rate"]
    return "" if rate is None else f"; {_percent(rate)} of requests found theirs on the GPU"


def _loads(summary: dict[str, Any]) -> Iterator[str]:
    loads, stall_s = summary["adapters"]["loads"], summary["transfers"]["stall_s"]
    if loads:
        stalled = f"stalled steps for {_seconds(stall_s)} s in all" if stall_s else "beside the steps"
        yield f"loads: {loads:,}, {stalled}"


def _kernels(summary: dict[str, Any], scenario: Scenario) -> Iterator[str]:
    share = summary["bottleneck"]["shares"]["decode_lora"]
    if not scenario.engine.enable_lora or share is None or engine_spec(scenario.engine.kind).merges:
        return
    waste = summary["ranks"]["padded_compute_waste_fraction"]
    padding = f"; {_percent(waste)} of LoRA compute is padding" if waste and waste >= NOTABLE else ""
    yield f"kernels: {KERNELS[scenario.engine.kernels]}, {_percent(share)} of request time{padding}"


def _percent(fraction: float) -> str:
    return f"{fraction * 100:.1f} %" if 0 < fraction < 0.1 else f"{fraction:.0%}".replace("%", " %")


def _seconds(value: float) -> str:
    """Three digits, and never an exponent for long ones."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
