"""Two runs beside each other: what changed in the configuration, and what that changed in the results."""

from __future__ import annotations

from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simlora.report import facts, units
from simlora.report.facts import Summary
from simlora.results.shares import CATEGORIES
from simlora.results.summary import METRICS
from simlora.results.summary_metric import HIGHER, NEUTRAL, Unit

SETTINGS = ("model", "gpu", "server_version", "engine", "adapters", "workload", "cluster", "storage", "calibration")
"""Parts of run.json that are settings, not results."""


class DiffRow(NamedTuple):
    """One metric of both runs; None where a run does not define it."""

    label: str
    metric: str
    """Path in the summary, dotted."""
    a: float | None
    b: float | None
    text_a: str
    text_b: str
    ratio: float | None
    """b / a - 1; None where that is undefined."""
    better: bool | None
    """Whether b is better; None for equal values and for metrics without a better side."""


def diff(summary_a: Summary, summary_b: Summary) -> list[DiffRow]:
    """All compared metrics, in the order of a summary, then where request time goes; equal ones included."""
    rows = []
    for metric in METRICS:
        for statistic in metric.statistics if metric.better is not None else ():
            label, name = f"{metric.label} {statistic}", f"{metric.name}.{statistic}"
            rows.append(_row(summary_a, summary_b, label, name, metric.unit, metric.better))
        if metric.better is not None and not metric.statistics:
            rows.append(_row(summary_a, summary_b, metric.label, metric.name, metric.unit, metric.better))
    for name, category in CATEGORIES.items():
        path = f"bottleneck.shares.{name}"
        rows.append(_row(summary_a, summary_b, f"time: {category.label}", path, "fraction", NEUTRAL))
    return rows


def _row(a: Summary, b: Summary, label: str, name: str, unit: Unit, better: int | None) -> DiffRow:
    before, after = _number(a, name), _number(b, name)
    ratio, is_better = None, None
    if before is not None and after is not None:
        ratio = after / before - 1 if before else (0.0 if after == before else None)
        if after != before and better:
            is_better = (after > before) == (better == HIGHER)
    return DiffRow(label, name, before, after, units.text(before, unit), units.text(after, unit), ratio, is_better)


def _number(summary: Summary, name: str) -> float | None:
    value = facts.value_at(summary, name)
    return value if isinstance(value, (int, float)) else None


def settings_diff(run_a: dict[str, Any], run_b: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """(key path, value in a, value in b) of every setting that differs between two run.json mappings."""
    a = _flatten({key: run_a.get(key) for key in SETTINGS})
    b = _flatten({key: run_b.get(key) for key in SETTINGS})
    keys = list(dict.fromkeys([*a, *b]))
    return [(key, a.get(key), b.get(key)) for key in keys if a.get(key) != b.get(key)]


def diff_table(
    summary_a: Summary,
    summary_b: Summary,
    runs: tuple[dict[str, Any] | None, dict[str, Any] | None] = (None, None),
    names: tuple[str, str] = ("A", "B"),
    everything: bool = False,
) -> RenderableType:
    """The differences as tables: of settings when both run.json mappings are given, and of results.

    With everything, unchanged results are listed too.
    """
    parts: list[RenderableType] = []
    if runs[0] is not None and runs[1] is not None:
        settings = settings_diff(runs[0], runs[1])
        parts += [_settings_table(settings, names) if settings else Text("same settings", style="dim"), Text()]
    shown = [row for row in diff(summary_a, summary_b) if everything or row.a != row.b]
    parts.append(_results_table(shown, names) if shown else Text("same results", style="bold"))
    return Group(*parts)


def _settings_table(settings: list[tuple[str, Any, Any]], names: tuple[str, str]) -> Table:
    table = _table("Setting", *names)
    for key, before, after in settings:
        table.add_row(key, _plain(before), _plain(after))
    return table


def _results_table(rows: list[DiffRow], names: tuple[str, str]) -> Table:
    table = _table("Result", *names, "change")
    for row in rows:
        style = {True: "green", False: "red", None: ""}[row.better]
        table.add_row(row.label, row.text_a, row.text_b, Text(_change(row), style=style))
    return table


def _change(row: DiffRow) -> str:
    """Shares differ in points, everything else in relation."""
    if row.a is None or row.b is None:
        return ""
    if row.text_a.endswith("%") or row.text_b.endswith("%"):
        return f"{(row.b - row.a) * 100:+.1f} points"
    return units.change(row.ratio) if row.ratio is not None else ""


def _table(first: str, *rest: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    table.add_column(first, no_wrap=True)
    for name in rest:
        table.add_column(name, justify="right")
    return table


def _flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix: value}
    out: dict[str, Any] = {}
    for key, item in value.items():
        out |= _flatten(item, f"{prefix}.{key}" if prefix else str(key))
    return out


def _plain(value: Any) -> str:
    return units.MISSING if value is None else str(value)
