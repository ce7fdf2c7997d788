"""The decision at the end of a run: what binds, what to change, what the change gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simlora.results.shares import CATEGORIES

if TYPE_CHECKING:
    from simlora.plan.decision import Candidate, Decision, Outcome


def decision_panel(decision: Decision) -> RenderableType:
    """What binds, a table of the changes tried, and the recommendation."""
    slo = "meets its SLO" if decision.meets_slo else "misses its SLO"
    word = CATEGORIES[decision.binding].phrase if decision.binding in CATEGORIES else decision.binding
    head = Text(f"decision: {slo}; {decision.share:.0%} of request time goes to {word}", style="bold")
    if not decision.candidates:
        return Group(Text(""), head, Text("nothing to change: no other part of request time is large enough"))
    return Group(Text(""), head, _table(decision), Text(recommendation(decision), style="bold"))


def recommendation(decision: Decision) -> str:
    """One sentence a person can act on."""
    best = decision.best
    if best is None or best.outcome is None:
        return "keep the settings: no change tried is worth its price"
    base, out = decision.baseline, best.outcome
    gains = [f"mean TTFT {_ms(base.ttft_mean_s)} -> {_ms(out.ttft_mean_s)}"]
    if abs(out.attainment - base.attainment) >= 0.001:
        gains.append(f"attainment {base.attainment:.1%} -> {out.attainment:.1%}")
    return f"set {change_label(best)}: {', '.join(gains)}; {_price(base, out)}"


def change_label(candidate: Candidate) -> str:
    parts = [f"{key} {_word(before)} -> {_word(after)}" for key, before, after in candidate.changes if before != after]
    return ", ".join(part.removeprefix("engine.").removeprefix("cluster.dedicated.") for part in parts)


def _word(value: Any) -> str:
    """A setting's value as a person would say it; fractions without the noise of binary floats."""
    if value is None:
        return "off"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _price(base: Outcome, out: Outcome) -> str:
    parts = []
    tokens = out.kv_tokens - base.kv_tokens
    if tokens:
        parts.append(f"{'frees' if tokens > 0 else 'costs'} {abs(tokens):,} KV tokens per replica")
    dollars = out.usd_per_hour - base.usd_per_hour
    if abs(dollars) >= 0.005:
        parts.append(f"{'costs' if dollars > 0 else 'saves'} ${abs(dollars):,.2f}/h")
    return ", ".join(parts) or "costs nothing"


def _table(decision: Decision) -> Table:
    title = f"tried on {decision.sampled_requests:,} of the requests"
    table = Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
    table.add_column("change", min_width=26, overflow="fold")
    for name in ("TTFT mean", "TPOT mean", "attainment", "tokens/s", "$/h"):
        table.add_column(name, justify="right")
    table.add_row("as it is", *_cells(decision.baseline))
    for candidate in decision.candidates:
        label = change_label(candidate)
        if candidate.outcome is None:
            table.add_row(label, Text(f"refused: {candidate.refused}", overflow="ellipsis", no_wrap=True))
        else:
            table.add_row(label, *_cells(candidate.outcome))
    return table


def _cells(out: Outcome) -> tuple[str, ...]:
    return (
        _ms(out.ttft_mean_s), _ms(out.tpot_mean_s), f"{out.attainment:.1%}", f"{out.throughput_tps:,.0f}",
        f"{out.usd_per_hour:,.2f}",
    )  # fmt: skip


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1e3:,.0f} ms" if seconds < 10 else f"{seconds:,.1f} s"
