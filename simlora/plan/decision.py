"""What a run's user should do: what binds, which change helps, and what the change gives, by a rerun per candidate.

Candidates follow from the request-seconds that the run lost (summary bottleneck.shares). Each one is simulated on the
same requests (at most MAX_REQUESTS of them), so that the figures differ by the change alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from simlora.errors import SimloraError
from simlora.memory.advice import rank_waste
from simlora.results.summary import summarize
from simlora.scenario import Scenario, changed
from simlora.sim.build import Inputs, build_inputs
from simlora.sim.simulate import simulate

MAX_REQUESTS = 1500
"""Requests that a candidate's rerun simulates, from the middle of the run's busiest stretch on."""
MAX_CANDIDATES = 4
NOTABLE_SHARE = 0.05
"""A share of the request-seconds below which no change is tried for it."""
CONTEXT_GIB = 2**30


@dataclass(frozen=True)
class Outcome:
    """The figures that a change is judged by."""

    ttft_mean_s: float | None
    tpot_mean_s: float | None
    attainment: float
    throughput_tps: float
    usd_per_hour: float
    kv_tokens: int

    @classmethod
    def of(cls, summary: dict[str, Any], scenario: Scenario, kv_tokens: int) -> Outcome:
        gpus = scenario.gpus_per_replica * scenario.cluster.replicas
        return cls(
            ttft_mean_s=summary["ttft_s"]["mean"],
            tpot_mean_s=summary["tpot_s"]["mean"],
            attainment=summary["slo"]["attainment"],
            throughput_tps=summary["output_throughput_tps"] or 0.0,
            usd_per_hour=gpus * scenario.cost.gpu_hour_usd,
            kv_tokens=kv_tokens,
        )


@dataclass(frozen=True)
class Candidate:
    """One change, and what it gives."""

    key: str
    before: Any
    after: Any
    outcome: Outcome | None
    refused: str = ""
    """Why the change is impossible, when outcome is None."""


@dataclass(frozen=True)
class Decision:
    """What binds a run and what was tried about it. candidates: best first."""

    binding: str
    share: float
    meets_slo: bool
    baseline: Outcome
    candidates: tuple[Candidate, ...]
    best: Candidate | None
    sampled_requests: int


def decide(inputs: Inputs, summary: dict[str, Any], progress: Callable[[str], None] | None = None) -> Decision:
    """Rerun the candidates that the summary's bottleneck suggests."""
    scenario = inputs.scenario
    sample = _sample(inputs)
    base = _play(sample)
    tried = []
    for key, value in _candidates(scenario, summary):
        if progress is not None:
            progress(f"{key} {_value(scenario, key)} -> {value}")
        tried.append(_try(sample, key, value))
        if len(tried) == MAX_CANDIDATES:
            break
    meets = summary["slo"]["attainment"] >= scenario.slo.attainment
    ranked = sorted(tried, key=lambda c: _merit(c, base, meets), reverse=True)
    best = ranked[0] if ranked and _merit(ranked[0], base, meets) > 0 else None
    shares = summary["bottleneck"]["shares"]
    binding = summary["bottleneck"]["binding"]
    return Decision(binding, shares.get(binding) or 0.0, meets, base, tuple(ranked), best, len(sample.requests))


def _sample(inputs: Inputs) -> Inputs:
    """The inputs cut to MAX_REQUESTS requests, times re-based to the first one kept."""
    table = inputs.requests
    if len(table) <= MAX_REQUESTS:
        return inputs
    keep = slice((len(table) - MAX_REQUESTS) // 2, (len(table) - MAX_REQUESTS) // 2 + MAX_REQUESTS)
    cut = replace(
        table,
        arrival_s=table.arrival_s[keep] - table.arrival_s[keep][0],
        adapter=table.adapter[keep],
        prompt_tokens=table.prompt_tokens[keep],
        output_tokens=table.output_tokens[keep],
        prefix=None if table.prefix is None else table.prefix[keep],
    )
    return replace(inputs, requests=cut)


def _play(inputs: Inputs) -> Outcome:
    kv_tokens = (inputs.ledger.kv_blocks - 1) * inputs.scenario.engine.block_size
    return Outcome.of(summarize(simulate(inputs)), inputs.scenario, kv_tokens)


def _try(sample: Inputs, key: str, value: Any) -> Candidate:
    before = _value(sample.scenario, key)
    try:
        scenario = changed(sample.scenario, {key: value})
        outcome = _play(build_inputs(scenario, sample.adapters, sample.requests, sample.initial))
    except SimloraError as error:
        return Candidate(key, before, value, None, str(error))
    return Candidate(key, before, value, outcome)


def _candidates(scenario: Scenario, summary: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """(key, new value) by the shares of lost request-seconds, largest first."""
    engine, shares = scenario.engine, summary["bottleneck"]["shares"]
    share = {name: value or 0.0 for name, value in shares.items()}
    waste = rank_waste(scenario)
    meets = summary["slo"]["attainment"] >= scenario.slo.attainment
    adapters = scenario.adapters.count
    options: list[tuple[float, str, Any]] = []
    slots, loads = share["queue_slots"], share["load"]
    if engine.enable_lora and adapters > engine.max_loras:
        options.append((slots + loads, "engine.max_loras", min(2 * engine.max_loras, adapters)))
    if engine.enable_lora and adapters > engine.max_cpu_loras:
        options.append((loads, "engine.max_cpu_loras", min(4 * engine.max_cpu_loras, adapters)))
    options.append((share["queue_seqs"], "engine.max_num_seqs", 2 * engine.max_num_seqs))
    options.append((share["queue_kv"], "engine.gpu_memory_utilization", 0.95))
    if engine.enable_lora and engine.max_loras > 1:
        options.append((share["queue_kv"] + share["decode_lora"], "engine.max_loras", max(1, engine.max_loras // 2)))
    if waste is not None:
        options.append((share["decode_lora"] + share["queue_kv"], "engine.max_lora_rank", waste.enough))
    lost = sum(value for name, value in share.items() if name.startswith("queue"))
    options.append((1.0 if not meets else lost, "cluster.replicas", scenario.cluster.replicas + 1))
    if meets and scenario.cluster.replicas > 1:
        options.append((1.0, "cluster.replicas", scenario.cluster.replicas - 1))
    for weight, key, value in sorted(options, key=lambda o: -o[0]):
        if weight >= NOTABLE_SHARE and value != _value(scenario, key):
            yield key, value


def _merit(candidate: Candidate, base: Outcome, meets_slo: bool) -> float:
    """Positive when the change is worth it: attainment first; at equal attainment latency per dollar."""
    out = candidate.outcome
    if out is None:
        return -1.0
    gain = out.attainment - base.attainment
    if meets_slo and gain > -0.002 and out.usd_per_hour < base.usd_per_hour:
        return 10.0 * (base.usd_per_hour - out.usd_per_hour) / base.usd_per_hour
    dearer = out.usd_per_hour / base.usd_per_hour if base.usd_per_hour else 1.0
    faster = (base.ttft_mean_s or 0.0) / out.ttft_mean_s - 1.0 if out.ttft_mean_s and base.ttft_mean_s else 0.0
    if dearer > 1.0:
        return 0.0 if meets_slo else gain / dearer
    return gain + 0.1 * min(max(faster, -1.0), 10.0) if gain > -0.002 and faster > 0.05 else gain


def _value(scenario: Scenario, key: str) -> Any:
    target: Any = scenario
    for part in key.split("."):
        target = getattr(target, part)
    return target
