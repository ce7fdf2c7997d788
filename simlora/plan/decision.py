"""What a run's user should do: what binds, which change helps, and what the change gives, by a rerun per candidate.

Candidates follow from the request-seconds that the run lost (summary bottleneck.shares). Each one is simulated on the
same requests (at most MAX_REQUESTS of them), so that the figures differ by the change alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import log2
from typing import Any

from simlora.engines.inputs import Inputs
from simlora.errors import SimloraError
from simlora.plan.candidates import candidates, value_of
from simlora.results.summary import summarize
from simlora.scenario.load import changed
from simlora.scenario.root import Scenario
from simlora.sim.build import build_inputs
from simlora.sim.simulate import simulate

MAX_REQUESTS = 1500
"""Requests that a candidate's rerun simulates, from the middle of the run's busiest stretch on."""
MAX_CANDIDATES = 4
FIGURES = ("ttft_s", "tpot_s", "slo.attainment", "output_throughput_tps", "cost.usd_per_hour")
"""Metrics of a summary that an Outcome is made of."""
LOSS_WEIGHT = 4.0
"""How much more a lost point of attainment weighs than a gained one."""


@dataclass(frozen=True)
class Outcome:
    """The figures that a change is judged by."""

    ttft_mean_s: float | None
    tpot_mean_s: float | None
    attainment: float
    meets_slo: bool
    throughput_tps: float
    usd_per_hour: float
    kv_tokens: int

    @classmethod
    def of(cls, summary: dict[str, Any], scenario: Scenario, kv_tokens: int) -> Outcome:
        return cls(
            ttft_mean_s=summary["ttft_s"]["mean"],
            tpot_mean_s=summary["tpot_s"]["mean"],
            attainment=summary["slo"]["attainment"],
            meets_slo=summary["slo"]["attainment"] >= scenario.slo.attainment,
            throughput_tps=summary["output_throughput_tps"] or 0.0,
            usd_per_hour=summary["cost"]["usd_per_hour"],
            kv_tokens=kv_tokens,
        )


@dataclass(frozen=True)
class Candidate:
    """One change of one or several keys, and what it gives."""

    changes: tuple[tuple[str, Any, Any], ...]
    """(key, value before, value after)."""
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
    scenario = _as_written(inputs)
    sample = _sample(inputs)
    base = _outcome(sample, summary) if sample is inputs else _play(sample)
    tried: list[Candidate] = []
    for changes in candidates(scenario, summary):
        if len(tried) < MAX_CANDIDATES:
            if progress is not None:
                progress(", ".join(f"{key} -> {value}" for key, value in changes.items()))
            tried.append(_try(sample, changes))
    meets = summary["slo"]["attainment"] >= scenario.slo.attainment
    ranked = sorted(tried, key=lambda c: _merit(c, base, meets), reverse=True)
    together = _together([c for c in ranked if _merit(c, base, meets) > 0])
    if together:
        ranked = sorted([*ranked, _try(sample, together)], key=lambda c: _merit(c, base, meets), reverse=True)
    best = ranked[0] if ranked and _merit(ranked[0], base, meets) > 0 else None
    shares = summary["bottleneck"]["shares"]
    binding = summary["bottleneck"]["binding"]
    return Decision(binding, shares.get(binding) or 0.0, meets, base, tuple(ranked), best, len(sample.requests))


def _as_written(inputs: Inputs) -> Scenario:
    """The user's scenario, also where each tenant has a deployment of its own."""
    return inputs.dedicated or inputs.scenario


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
    return _outcome(inputs, summarize(simulate(inputs), FIGURES))


def _outcome(inputs: Inputs, summary: dict[str, Any]) -> Outcome:
    return Outcome.of(summary, _as_written(inputs), inputs.ledger.usable_kv_tokens)


def _try(sample: Inputs, changes: dict[str, Any]) -> Candidate:
    written = _as_written(sample)
    listed = tuple((key, value_of(written, key), value) for key, value in changes.items())
    try:
        scenario = changed(written, changes)
        outcome = _play(build_inputs(scenario, sample.adapters, sample.requests))
    except SimloraError as error:
        return Candidate(listed, None, str(error))
    return Candidate(listed, outcome)


def _together(helpful: list[Candidate]) -> dict[str, Any]:
    """The helpful changes of the engine in one, the larger value where two set one key; empty if there is one only."""
    chosen = [c for c in helpful if all(key.startswith("engine.") for key, _, _ in c.changes)]
    changes: dict[str, Any] = {}
    for candidate in chosen:
        for key, before, after in candidate.changes:
            if before != after:
                changes[key] = max(changes[key], after) if key in changes else after
    known = [{key: after for key, before, after in c.changes if before != after} for c in chosen]
    return {} if len(chosen) < 2 or changes in known else changes


def _merit(candidate: Candidate, base: Outcome, meets_slo: bool) -> float:
    """Positive when the change is worth it.

    Points of attainment count most; halving the mean TTFT is worth ten of them, a tenth more throughput five. With a
    higher price the gain is per dollar. A run that meets its SLO is not made dearer, and may be made cheaper.
    """
    out = candidate.outcome
    if out is None:
        return -1.0
    gain = out.attainment - base.attainment
    if out.usd_per_hour < base.usd_per_hour:
        saved = (base.usd_per_hour - out.usd_per_hour) / base.usd_per_hour
        return 10.0 * saved if meets_slo and out.meets_slo else -1.0
    dearer = out.usd_per_hour / base.usd_per_hour if base.usd_per_hour else 1.0
    if meets_slo and dearer > 1.0:
        return 0.0
    faster = log2(base.ttft_mean_s / out.ttft_mean_s) if base.ttft_mean_s and out.ttft_mean_s else 0.0
    more = out.throughput_tps / base.throughput_tps - 1.0 if base.throughput_tps else 0.0
    merit = gain if gain > 0 else LOSS_WEIGHT * gain
    merit += 0.1 * min(max(faster, -3.0), 3.0) + 0.5 * min(max(more, -1.0), 1.0)
    return merit / dearer - 0.05
