"""What a report says, as label and text, taken from a summary: shared by the terminal and the HTML page.

The scenario adds what a summary does not hold (model, GPU, objectives); every function works without it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from simlora.report import units
from simlora.results.gpus import usd_per_month
from simlora.results.shares import CATEGORIES
from simlora.results.summary import METRICS

Summary = dict[str, Any]


class Fact(NamedTuple):
    """One line: a label, a value, and whether the reader should be warned by it."""

    label: str
    text: str
    warn: bool = False


def title(summary: Summary, scenario: Any = None) -> str:
    """What was simulated."""
    parts = [str(summary["scenario"])]
    if scenario is not None:
        gpus = summary["cost"]["gpus"]
        parts.append(f"{scenario.model_spec.name} on {gpus} × {scenario.gpu_spec.name}")
        parts.append(f"{scenario.engine.kind} {scenario.engine.version}")
    parts.append(f"seed {summary['seed']}")
    return " · ".join(parts)


def verdict(summary: Summary, scenario: Any = None) -> tuple[bool | None, str]:
    """(met, sentence) on the service level; met is None without a target or without requests."""
    attainment, offered = summary["slo"]["attainment"], summary["requests"]["offered"]
    if attainment is None:
        return None, "no requests"
    slo = getattr(scenario, "slo", None)
    text = f"{units.percent(attainment)} of {units.number(offered)} requests"
    limits = [
        f"{name} {units.seconds(limit)}"
        for name, limit in (("TTFT", getattr(slo, "ttft_s", None)), ("TPOT", getattr(slo, "tpot_s", None)))
        if limit is not None
    ]
    text += f" within {' and '.join(limits)}" if limits else " within the SLO"
    target = getattr(slo, "attainment", None)
    if target is None:
        return None, text
    met = attainment >= target
    return met, f"{'meets' if met else 'misses'} its SLO: {text} (target {units.percent(target)})"


def key_figures(summary: Summary) -> list[Fact]:
    """The four numbers that answer most questions."""
    return [
        Fact("throughput", f"{units.number(summary['request_throughput_rps'])} req/s"),
        Fact("output", f"{units.number(summary['output_throughput_tps'])} tokens/s"),
        Fact("p99 TTFT", units.seconds(summary["ttft_s"]["p99"])),
        Fact("per 1M tokens", units.usd(summary["cost"]["usd_per_1m_tokens"])),
    ]


def details(summary: Summary) -> dict[str, list[Fact]]:
    """Heading -> lines."""
    return {
        "Traffic": traffic(summary),
        "Adapters": adapters(summary),
        "Memory and GPU": machine(summary),
        "Cost": money(summary),
    }


def traffic(summary: Summary) -> list[Fact]:
    """Requests and rates."""
    requests = summary["requests"]
    lost = requests["rejected"] + requests["unfinished"]
    return [
        Fact("completed", f"{units.number(requests['completed'])} of {units.number(requests['offered'])}", lost > 0),
        *([Fact("rejected", units.number(requests["rejected"]), True)] if requests["rejected"] else []),
        *([Fact("unfinished", units.number(requests["unfinished"]), True)] if requests["unfinished"] else []),
        Fact("duration", units.seconds(summary["duration_s"])),
        Fact("requests", f"{units.number(summary['request_throughput_rps'])} /s"),
        Fact("goodput", f"{units.number(summary['slo']['goodput_rps'])} /s"),
        Fact("output tokens", f"{units.number(summary['output_throughput_tps'])} /s"),
        Fact("all tokens", f"{units.number(summary['total_throughput_tps'])} /s"),
        *_listed("Traffic", summary),
    ]


def adapters(summary: Summary) -> list[Fact]:
    """Adapters, loads and stalls."""
    block, moved, active = summary["adapters"], summary["transfers"], summary["active_adapters"]
    over = active["over_slots_fraction"]
    return [
        Fact("adapters used", units.number(block["distinct"])),
        Fact("at work at once", f"{units.number(active['mean'])} mean, {units.number(active['max'])} max"),
        Fact("more than slots", f"{units.percent(over)} of time", bool(over)),
        Fact("slot hits", units.percent(block["gpu_hit_rate"])),
        Fact("loads", f"{units.number(block['loads'])}, {units.size(block['load_bytes'])}"),
        Fact("host hits", f"{units.percent(block['host_hit_rate'])} of loads"),
        Fact("evictions", f"{units.number(block['evictions'])}, {units.number(block['churn_per_s'])} /s"),
        Fact("steps stalled", units.seconds(moved["stall_s"]), bool(summary["health"]["thrashing"])),
        *_listed("Adapters", summary),
    ]


def machine(summary: Summary) -> list[Fact]:
    """Memory and GPU."""
    memory, gpu, ranks = summary["memory"], summary["gpu"], summary["ranks"]
    return [
        Fact("KV blocks", units.number(memory["kv_blocks"])),
        Fact("KV use", f"{units.percent(memory['kv_usage_mean'])} mean, {units.percent(memory['kv_usage_max'])} max"),
        Fact("preemptions", units.number(memory["preemptions"]), memory["preemptions"] > 0),
        Fact("GPU busy", units.percent(gpu["busy_fraction"])),
        Fact("HBM use", f"≥ {units.percent(gpu['hbm_bandwidth_fraction'])}"),
        Fact("FLOPS use", f"≥ {units.percent(gpu['flops_fraction'])}"),
        Fact("rank padding", f"{units.percent(ranks['padded_compute_waste_fraction'])} of LoRA"),
        *_listed("Memory and GPU", summary),
    ]


def money(summary: Summary) -> list[Fact]:
    """Cost."""
    cost = summary["cost"]
    return [
        Fact("GPUs", units.number(cost["gpus"])),
        *([Fact("GPUs at a time", units.number(cost["gpus_mean"]))] if cost["gpus_mean"] < cost["gpus"] else []),
        Fact("GPU-hours", units.number(cost["gpu_hours"])),
        Fact("this run", units.usd(cost["usd"])),
        Fact("per hour", units.usd(cost["usd_per_hour"])),
        Fact("per month", units.usd(usd_per_month(cost))),
        Fact("per 1M tokens", units.usd(cost["usd_per_1m_tokens"])),
        *_listed("Cost", summary),
    ]


def value_at(summary: Summary, name: str) -> Any:
    """The value at a dotted name; None where the summary, which may be an older version's, has none."""
    value: Any = summary
    for key in name.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _listed(heading: str, summary: Summary) -> list[Fact]:
    """The metrics that stand under a heading of their own accord."""
    chosen = (metric for metric in METRICS if metric.listed == heading)
    return [Fact(metric.label, units.text(value_at(summary, metric.name), metric.unit)) for metric in chosen]


def shares(summary: Summary, at_least: float = 0.0005) -> list[tuple[str, str, float]]:
    """(category, label, share) of where request time goes, largest first, without the negligible."""
    known = {name: share for name, share in summary["bottleneck"]["shares"].items() if share is not None}
    order = sorted(known, key=lambda name: -known[name])
    return [(name, CATEGORIES[name].label, known[name]) for name in order if known[name] >= at_least]


def extrapolated(summary: Summary) -> list[Fact]:
    """Terms of the latency model used outside their measured range, those of one share together."""
    by_share: dict[str, list[str]] = {}
    for term, fraction in summary["calibration"]["extrapolated"].items():
        by_share.setdefault(f"{units.percent(fraction)} of step time", []).append(term)
    return [Fact(", ".join(terms), share, True) for share, terms in by_share.items()]


STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")


def latencies() -> list[tuple[str, str]]:
    """(label, name) of the distributions."""
    return [(metric.label, metric.name) for metric in METRICS if metric.statistics]


def censored(summary: Summary) -> str | None:
    """A sentence on requests that never got a first token; None when all did."""
    count = summary["ttft_s"]["censored_count"]
    if not count:
        return None
    bound = units.seconds(summary["ttft_s"]["censored_lower_bound_p99"])
    return f"{units.number(count)} unfinished requests got no first token; counting them, p99 TTFT is at least {bound}"


def cold_starts(summary: Summary) -> list[tuple[str, dict[str, Any]]]:
    """(label, {requests, mean, p50, p99}) of TTFT by where the adapter was at admission; empty without a cold start."""
    labels = {"slot": "in a slot", "host": "from host", "disk": "from disk", "remote": "from remote"}
    used = [(labels[tier], block) for tier, block in summary["ttft_by_tier_s"].items() if block["requests"]]
    return used if any(label != "in a slot" for label, _ in used) else []
