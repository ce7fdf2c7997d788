"""report.html: one self-contained page with the tables and plots of a run. The same log gives the same bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simlora.engines.fit import build_ledger, scenario_shortage
from simlora.memory.ledger import binding, ledger_rows
from simlora.report import facts, units
from simlora.report.charts import cdf_chart, timeline_chart
from simlora.report.decision import change_label, recommendation
from simlora.report.facts import Summary
from simlora.report.html_template import TEMPLATE
from simlora.results.measured import Measured
from simlora.results.tenants import tenant_rows, worst
from simlora.scenario.root import Scenario
from simlora.sim.log import SimulationLog

if TYPE_CHECKING:
    from simlora.plan.decision import Decision, Outcome

MAX_TENANTS = 20
MAX_REPLICAS = 64

SHARE_COLOURS = {
    "queue_slots": "#e45756",
    "queue_kv": "#b279a2",
    "queue_seqs": "#f58518",
    "queue_tokens": "#bab0ac",
    "route": "#9d755d",
    "load": "#eeca3b",
    "prefill": "#72b7b2",
    "decode_base": "#4c78a8",
    "decode_lora": "#54a24b",
    "host": "#9ecae9",
    "collective": "#79706e",
}


def render_html(summary: Summary, log: SimulationLog, decision: Decision | None = None) -> str:
    """The page as text; with a decision, what was tried and what is recommended."""
    from jinja2 import Environment

    measured = Measured(log)
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(TEMPLATE).render(
        **_words(summary, log.scenario),
        **_tables(summary, measured),
        **_memory(log.scenario),
        **_decision(decision),
        cdf=cdf_chart(measured),
        timeline=timeline_chart(measured),
    )


def _words(summary: Summary, scenario: Any) -> dict[str, Any]:
    met, sentence = facts.verdict(summary, scenario)
    return {
        "title": facts.title(summary, scenario),
        "name": summary["scenario"],
        "verdict": sentence[:1].upper() + sentence[1:],
        "verdict_class": {True: "good", False: "bad", None: ""}[met],
        "figures": facts.key_figures(summary),
        "censored": facts.censored(summary),
        "extrapolated": facts.extrapolated(summary),
        "notes": summary["notes"],
        "rule": summary["health"]["rule"],
        "thrashing": summary["health"]["thrashing"],
        "calibration": summary["calibration"],
        "version": summary["simlora_version"],
    }


def _decision(decision: Decision | None) -> dict[str, Any]:
    if decision is None:
        return {"recommendation": None}
    rows = [("as it is", _outcome(decision.baseline), "")]
    for candidate in decision.candidates:
        label = change_label(candidate)
        cells = _outcome(candidate.outcome) if candidate.outcome is not None else []
        rows.append((label, cells, candidate.refused))
    sentence = recommendation(decision)
    return {
        "recommendation": sentence[:1].upper() + sentence[1:],
        "tried": rows,
        "sampled": units.number(decision.sampled_requests),
    }


def _memory(scenario: Any) -> dict[str, Any]:
    """The byte ledger of the scenario's engine, part by part."""
    if not isinstance(scenario, Scenario):
        return {"ledger": None}
    ledger = build_ledger(scenario)
    rows = [(r.label, f"{r.bytes / 1e9:.2f}", units.percent(r.share), r.note) for r in ledger_rows(ledger)]
    return {"ledger": rows, "binding": binding(ledger, scenario_shortage(scenario, ledger))}


def _outcome(outcome: Outcome) -> list[str]:
    return [
        units.ms(outcome.ttft_mean_s),
        units.ms(outcome.tpot_mean_s),
        units.percent(outcome.attainment),
        units.number(outcome.throughput_tps),
        units.number(outcome.kv_tokens),
        units.usd(outcome.usd_per_hour),
    ]


def _tables(summary: Summary, measured: Measured) -> dict[str, Any]:
    columns = {
        "Traffic": facts.traffic(summary),
        "Adapters": facts.adapters(summary),
        "Memory and GPU": facts.machine(summary),
        "Cost": facts.money(summary),
    }
    rows = worst(tenant_rows(measured), MAX_TENANTS)
    return {
        "statistics": facts.STATISTICS,
        "latencies": list(_latencies(summary)),
        "columns": columns,
        "shares": [(SHARE_COLOURS[name], label, share) for name, label, share in facts.shares(summary)],
        "tenants": [_tenant(row) for row in rows],
        "num_tenants": units.number(summary["tenants"]["count"]),
        "jain": units.number(summary["tenants"]["jain_index"]),
        "ranks": [(rank, units.percent(share)) for rank, share in summary["ranks"]["share_by_rank"].items()],
        "replicas": [_replica(row) for row in summary["replicas"][:MAX_REPLICAS]],
        "hidden_replicas": max(len(summary["replicas"]) - MAX_REPLICAS, 0),
        "percent": units.percent,
    }


def _latencies(summary: Summary) -> Any:
    """(label, is a detail of the row before, cells)."""
    for label, key in facts.latencies():
        yield label, False, [units.ms(summary[key][name]) for name in facts.STATISTICS]
        for tier, block in facts.cold_starts(summary) if key == "ttft_s" else ():
            yield tier, True, [units.ms(block[name]) if name in block else "" for name in facts.STATISTICS]


def _tenant(row: dict[str, Any]) -> list[str]:
    return [
        f"adapter {row['adapter']}" if row["adapter"] else "base model",
        units.number(row["rank"]),
        units.number(row["requests"]),
        units.number(row["completed"]),
        units.percent(row["attainment"]),
        units.ms(row["ttft_p50_s"]),
        units.ms(row["ttft_p99_s"]),
        units.ms(row["tpot_mean_s"]),
        units.MISSING if row["slowdown"] is None else f"{row['slowdown']:.2f}",
    ]


def _replica(row: dict[str, Any]) -> list[str]:
    return [
        units.number(row["replica"]),
        units.number(row["requests"]),
        units.number(row["completed"]),
        units.number(row["running_mean"]),
        units.number(row["waiting_mean"]),
        units.percent(row["busy_fraction"]),
        units.percent(row["kv_usage_mean"]),
        units.percent(row["kv_usage_max"]),
        units.percent(row["gpu_hit_rate"]),
        units.number(row["loads"]),
        units.number(row["preemptions"]),
    ]
