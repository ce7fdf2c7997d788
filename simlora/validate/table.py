"""Tables of errors for the terminal: whole runs by metric, and single measurements one by one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from simlora.results.metrics import METRICS
from simlora.validate.rows import DECODE, LOAD, PREFILL, Row

KNIFE_EDGE = "~"
LEGEND = (
    "Errors are simulated / measured - 1 in %; beside them the same with all step times 5 % shorter and 5 % longer. "
    f"{KNIFE_EDGE}: the measured value lies between those two, so 5 % of step time explain the error."
)
_GOOD, _FAIR = 0.05, 0.15
_ANY_WIDTH = 1000
_HEADINGS = {
    "request_throughput_rps": "req/s",
    "output_throughput_tps": "tok/s",
    "preemptions": "preempt",
    "distinct_adapters": "adapters",
    "prompt_tokens": "prompt",
}
_TITLES = {DECODE: "Decode: gap between tokens", PREFILL: "Prefill alone: TTFT", LOAD: "Adapter load: TTFT"}


class RunErrors:
    """Errors of whole runs: runs by metrics where the terminal is wide enough, else a line for each."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._runs = _by_run(rows)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = self._wide()
        needed = Measurement.get(console, options.update(max_width=_ANY_WIDTH), wide).maximum
        yield wide if needed <= options.max_width else self._long()

    def _wide(self) -> Table:
        """Preemptions are counts, simulated / measured, since 0 is common."""
        table = _table("Error of simulated runs, %")
        table.add_column("run", no_wrap=True)
        for metric in METRICS:
            table.add_column(_HEADINGS.get(metric) or _two_lines(metric), justify="right", no_wrap=True)
        for name, by_metric in self._runs.items():
            table.add_row(name, *(_stacked(by_metric.get(metric)) for metric in METRICS))
        return table

    def _long(self) -> Table:
        table = _table("Error of simulated runs")
        table.add_column("run")
        table.add_column("metric", no_wrap=True)
        for name in ("measured", "simulated", "error, %"):
            table.add_column(name, justify="right", no_wrap=True)
        for name, by_metric in self._runs.items():
            for metric, row in by_metric.items():
                first, last = metric == METRICS[0], metric == METRICS[-1]
                values = _value(row.measured), _value(row.simulated)
                table.add_row(name if first else "", metric, *values, _in_line(row), end_section=last)
        return table


def run_table(rows: Iterable[Row]) -> RunErrors:
    """Whole runs; LEGEND explains the cells."""
    return RunErrors(rows)


def measurement_table(rows: Sequence[Row]) -> Group:
    """Single measurements, a table for each kind; LEGEND explains the cells."""
    tables = []
    for metric, title in _TITLES.items():
        of_kind = [row for row in rows if row.metric == metric]
        if of_kind:
            tables.append(_measurements(title, of_kind))
    return Group(*tables)


def _measurements(title: str, rows: Sequence[Row]) -> Table:
    table = _table(title)
    table.add_column("run")
    for name in rows[0].key:
        table.add_column(_HEADINGS.get(name, name), justify="right")
    for name in ("measured\nms", "simulated\nms", "error, %"):
        table.add_column(name, justify="right", no_wrap=name == "error, %")
    for row in rows:
        table.add_row(row.run, *map(str, row.key.values()), _ms(row.measured), _ms(row.simulated), _in_line(row))
    return table


def error_text(row: Row) -> str:
    """ "+3.1 % [-2, +8] ~": the error, its band, and the mark of a value within it; "-" where it is not defined."""
    if row.error is None:
        return "-"
    return f"{100 * row.error:+.1f} % [{', '.join(_band(row))}]{f' {KNIFE_EDGE}' if row.in_band else ''}"


def _stacked(row: Row | None) -> Text:
    """The error above its band."""
    if row is None:
        return Text("")
    if row.metric == "preemptions":
        return Text(f"{_value(row.simulated)}/{_value(row.measured)}")
    if row.error is None:
        return Text("-")
    mark = KNIFE_EDGE if row.in_band else " "
    return Text(f"{100 * row.error:+.1f}{mark}\n{'/'.join(_band(row))} ", style=_style(row))


def _in_line(row: Row) -> Text:
    if row.error is None:
        return Text("-")
    text = f"{100 * row.error:+.1f}{KNIFE_EDGE if row.in_band else ' '} {'/'.join(_band(row)):>9}"
    return Text(text, style=_style(row))


def _style(row: Row) -> str:
    size = abs(row.error or 0.0)
    return "green" if size <= _GOOD else "yellow" if size <= _FAIR or row.in_band else "red"


def _band(row: Row) -> list[str]:
    """The error in % with shorter and with longer steps."""
    values = (row.simulated_step_x095, row.simulated_step_x105)
    return [
        f"{100 * (value / row.measured - 1):+.0f}" if value is not None and row.measured else "-" for value in values
    ]


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)


def _two_lines(metric: str) -> str:
    """ttft_p50_s -> TTFT p50, in two lines."""
    name, statistic = metric.removesuffix("_s").split("_")
    return f"{name.upper()}\n{statistic}"


def _by_run(rows: Iterable[Row]) -> dict[str, dict[str, Row]]:
    grouped: dict[str, dict[str, Row]] = {}
    for row in rows:
        suffix = "".join(f" ({value})" for value in row.key.values())
        grouped.setdefault(row.run + suffix, {})[row.metric] = row
    return grouped


def _value(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.2f}"
