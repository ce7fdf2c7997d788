"""Tables of errors for the terminal: whole runs by metric, and single measurements one by one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from simlora.results.metrics import METRICS
from simlora.validate.rows import Row

KNIFE_EDGE = "~"
LEGEND = (
    "Errors are simulated / measured - 1. In brackets: the same error with all step times 5 % shorter and 5 % longer. "
    f"{KNIFE_EDGE} marks an error whose measured value lies between those two: 5 % of step time explain it."
)
_GOOD, _FAIR = 0.05, 0.15
_SHORT = {
    "request_throughput_rps": "requests/s",
    "output_throughput_tps": "tokens/s",
    "ttft_mean_s": "TTFT mean",
    "ttft_p50_s": "TTFT p50",
    "ttft_p99_s": "TTFT p99",
    "tpot_mean_s": "TPOT mean",
    "tpot_p50_s": "TPOT p50",
    "tpot_p99_s": "TPOT p99",
    "e2e_mean_s": "E2E mean",
}


def run_table(rows: Iterable[Row]) -> Table:
    """Runs by metrics. Preemptions are counts, since 0 is common: simulated / measured."""
    table = Table(title="Error of simulated runs", title_justify="left")
    table.add_column("run", no_wrap=True)
    for metric in METRICS:
        table.add_column(_SHORT.get(metric, metric), justify="right")
    for name, by_metric in _by_run(rows).items():
        table.add_row(name, *(_cell(by_metric.get(metric)) for metric in METRICS))
    return table


def measurement_table(rows: Sequence[Row]) -> Table:
    """Single measurements, one per line."""
    table = Table(title="Error of simulated single measurements", title_justify="left")
    table.add_column("run", no_wrap=True)
    table.add_column("metric", no_wrap=True)
    table.add_column("of")
    for name in ("measured ms", "simulated ms", "error"):
        table.add_column(name, justify="right")
    for row in rows:
        key = ", ".join(f"{name} {value}" for name, value in row.key.items())
        table.add_row(row.run, row.metric, key, _ms(row.measured), _ms(row.simulated), _cell(row))
    return table


def error_text(row: Row) -> str:
    """ "+3.1 % [-2, +8] ~": the error, its band, and the mark of a value within it; "-" where it is not defined."""
    if row.error is None:
        return "-"
    band = [_relative(value, row.measured) for value in (row.simulated_step_x095, row.simulated_step_x105)]
    inside = ", ".join("-" if value is None else f"{100 * value:+.0f}" for value in band)
    return f"{100 * row.error:+.1f} % [{inside}]{f' {KNIFE_EDGE}' if row.in_band else ''}"


def _cell(row: Row | None) -> Text:
    if row is None:
        return Text("")
    if row.metric == "preemptions":
        return Text(f"{_count(row.simulated)} / {_count(row.measured)}")
    text = error_text(row)
    if row.error is None:
        return Text(text)
    size = abs(row.error)
    return Text(text, style="green" if size <= _GOOD else "yellow" if size <= _FAIR or row.in_band else "red")


def _by_run(rows: Iterable[Row]) -> dict[str, dict[str, Row]]:
    grouped: dict[str, dict[str, Row]] = {}
    for row in rows:
        suffix = "".join(f" ({value})" for value in row.key.values())
        grouped.setdefault(row.run + suffix, {})[row.metric] = row
    return grouped


def _relative(value: float | None, measured: float | None) -> float | None:
    return None if value is None or not measured else value / measured - 1


def _count(value: Any) -> str:
    return "?" if value is None else f"{value:.0f}"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.2f}"
