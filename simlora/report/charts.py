"""Charts of a run as inline SVG for the HTML report, in the page's own colours. The same log gives the same bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape

import numpy as np
import numpy.typing as npt

from simlora.results.measured import Measured
from simlora.results.quantiles import group_quantiles
from simlora.results.timeline import WAITS
from simlora.results.timeseries import replica_series

Floats = npt.NDArray[np.float64]

INTERVALS = 240
"""Points of a curve over time; TTFT, whose quantiles need requests, has a sixth of them."""
CDF_POINTS = 300
BLUE, ORANGE, GREEN, RED = "#4c78a8", "#f58518", "#54a24b", "#e45756"
WAIT_COLOURS = dict(zip(WAITS, ("#e45756", "#b279a2", "#f58518", "#bab0ac"), strict=True))
WAIT_LABELS = dict(zip(WAITS, ("adapter slot", "KV blocks", "seat", "step or budget"), strict=True))

WIDTH, LEFT, RIGHT = 920.0, 52.0, 12.0
"""Of a chart and its margins, in units of the SVG: pixels where the page is wide enough."""
TITLE, AXIS = 24.0, 22.0
"""Height of the line above a panel, and of the numbers below it."""
ROOM = 20.0
"""Least distance of two numbers on a linear axis."""
LETTER = 6.1
"""Mean width of a letter of a legend."""


@dataclass(frozen=True)
class Scale:
    """Maps values from low .. high to places from start to end; with log, by their logarithm."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, values: Floats) -> Floats:
        low, high = (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)
        given = np.log10(np.maximum(values, self.low / 10)) if self.log else values
        return self.start + (given - low) * ((self.end - self.start) / (high - low))

    def place(self, value: float) -> float:
        return float(self.at(np.array([value]))[0])

    def ticks(self) -> list[float]:
        """Round values, as many as there is room for; on a logarithmic scale 1, 2 and 5 of each decade, or the decades
        when many."""
        if not self.log:
            span, most = self.high - self.low, min(max(abs(self.end - self.start) / ROOM, 2), 7)
            step = 10 ** math.floor(math.log10(span / most))
            step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= most)
            first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
            return [index * step for index in range(first, last + 1)]
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        parts = (1, 2, 5) if math.log10(self.high / self.low) < 2.5 else (1,)
        every = -(-len(decades) // 12)
        values = [part * 10.0**decade for decade in decades[::every] for part in parts]
        return [value for value in values if self.low <= value <= self.high]


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    x: Scale
    y: Scale

    def frame(self, x_label: str = "", x_numbers: bool = True, percent: bool = False) -> str:
        """Grid, numbers and title."""
        left, right, bottom, top = self.x.start, self.x.end, self.y.start, self.y.end
        out = [_text(left, top - 8, self.title, weight=600, size=13)]
        for value in self.y.ticks():
            y = self.y.place(value)
            out.append(_line(left, y, right, y))
            number = f"{value * 100:.0f} %" if percent else _number(value)
            out.append(_text(left - 7, y + 4, number, anchor="end"))
        for value in self.x.ticks():
            x = self.x.place(value)
            out.append(_line(x, bottom, x, top))
            if x_numbers:
                out.append(_text(x, bottom + 16, _number(value), anchor="middle"))
        if x_label:
            out.append(_text(right, bottom + 32, x_label, anchor="end"))
        return "".join(out)

    def curve(self, x: Floats, y: Floats, colour: str, dots: bool = False) -> str:
        """A line through the points; it breaks where y is NaN."""
        known = ~np.isnan(y)
        path = _path(self.x.at(x), self.y.at(np.where(known, y, self.y.high)), known)
        out = f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.6" stroke-linejoin="round"/>'
        if dots:
            points = zip(self.x.at(x[known]).tolist(), self.y.at(y[known]).tolist(), strict=True)
            out += "".join(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="1.8" fill="{colour}"/>' for px, py in points)
        return out

    def band(self, x: Floats, low: Floats, high: Floats, colour: str, opacity: float = 1.0) -> str:
        """The area between two curves."""
        there = _path(self.x.at(x), self.y.at(high))
        back = _path(self.x.at(x[::-1]), self.y.at(low[::-1])).replace("M", "L", 1)
        return f'<path d="{there}{back}Z" fill="{colour}" fill-opacity="{opacity:g}"/>'

    def legend(self, entries: list[tuple[str, str]]) -> str:
        """(colour, label) from left to right, ending above the right edge."""
        x = self.x.end - sum(20 + LETTER * len(label) for _, label in entries) + 6
        out = []
        for colour, label in entries:
            out.append(f'<rect x="{x:.1f}" y="{self.y.end - 16:.1f}" width="9" height="9" rx="2" fill="{colour}"/>')
            out.append(_text(x + 13, self.y.end - 8, label, size=11))
            x += 20 + LETTER * len(label)
        return "".join(out)


def cdf_chart(measured: Measured) -> str:
    """Cumulative distributions of TTFT and TPOT in milliseconds, with the objectives; returns an <svg> element."""
    slo = getattr(measured.log.scenario, "slo", None)
    half, height = WIDTH / 2, 250.0
    parts = []
    for left, name, values, limit, colour in (
        (0.0, "TTFT", measured.ttft_s, getattr(slo, "ttft_s", None), BLUE),
        (half, "TPOT", measured.tpot_s, getattr(slo, "tpot_s", None), GREEN),
    ):
        known = values[measured.in_statistics & ~np.isnan(values)]
        share = np.linspace(0, 1, CDF_POINTS)
        quantiles_ms = np.maximum(np.quantile(known, share) * 1e3, 1e-3) if len(known) else np.zeros(0)
        shown = [*quantiles_ms[[0, -1]].tolist()] if len(known) else []
        shown += [] if limit is None else [limit * 1e3]
        x = Scale(*_padded(shown or [1.0, 10.0]), left + LEFT, left + half - RIGHT, log=True)
        panel = Panel(name, x, Scale(0.0, 1.0, height - AXIS - 18, TITLE))
        parts.append(panel.frame("ms", percent=True))
        if len(known):
            parts.append(panel.curve(quantiles_ms, share, colour))
        if limit is not None:
            beyond = not len(known) or limit > np.max(known)
            parts.append(_objective(x.place(limit * 1e3), panel.y.start, x.place(limit * 1e3), panel.y.end))
            offset, anchor = (-4, "end") if beyond else (4, "start")
            parts.append(_text(x.place(limit * 1e3) + offset, panel.y.start - 6, "SLO", anchor, RED, size=11))
    return _svg(height, "Cumulative distributions of TTFT and TPOT", parts)


def timeline_chart(measured: Measured) -> str:
    """Running and waiting requests, TTFT, and KV use over time; empty for a run without time."""
    if measured.log.end_s <= 0 or not measured.timelines:
        return ""
    edges = np.linspace(0.0, measured.log.end_s, INTERVALS + 1)
    series = [replica_series(measured, index, edges) for index in range(len(measured.timelines))]
    x = Scale(0.0, measured.log.end_s, LEFT, WIDTH - RIGHT)
    return _svg(
        492.0,
        "Requests, TTFT and KV use over time",
        [
            _requests_over_time(x, TITLE + 150, edges, series),
            _ttft_over_time(x, TITLE + 310, measured, edges),
            _kv_over_time(x, TITLE + 428, edges, series),
        ],
    )


def _requests_over_time(x: Scale, bottom: float, edges: Floats, series: list[dict[str, Floats]]) -> str:
    middle = (edges[:-1] + edges[1:]) / 2
    layers = {name: np.sum([one[name] for one in series], axis=0) for name in ("running", *WAITS)}
    shown = ["running", *(name for name in WAITS if layers[name].max(initial=0) > 0.05)]
    tops = np.cumsum([layers[name] for name in shown], axis=0)
    panel = Panel("requests", x, Scale(0.0, max(float(tops[-1].max()), 1e-3) * 1.05, bottom, bottom - 150))
    colours = [BLUE, *(WAIT_COLOURS[name] for name in shown[1:])]
    labels = ["running", *(f"waiting: {WAIT_LABELS[name]}" for name in shown[1:])]
    floors = np.vstack((np.zeros_like(middle), tops[:-1]))
    bands = [panel.band(middle, low, high, c) for low, high, c in zip(floors, tops, colours, strict=True)]
    return "".join((panel.frame(x_numbers=False), *bands, panel.legend(list(zip(colours, labels, strict=True)))))


def _ttft_over_time(x: Scale, bottom: float, measured: Measured, edges: Floats) -> str:
    known = ~np.isnan(measured.ttft_s)
    wide = edges[::6]
    group = np.clip(np.searchsorted(wide, measured.log.requests.arrival_s[known], side="right") - 1, 0, len(wide) - 2)
    p50, p99 = group_quantiles(group, measured.ttft_s[known] * 1e3, len(wide) - 1, (0.5, 0.99))
    limit = getattr(getattr(measured.log.scenario, "slo", None), "ttft_s", None)
    shown = [value for value in (*p50.tolist(), *p99.tolist()) if value == value]
    shown += [] if limit is None else [limit * 1e3]
    panel = Panel(
        "TTFT by time of arrival (ms)", x, Scale(*_padded(shown or [1.0, 10.0]), bottom, bottom - 110, log=True)
    )
    middle = (wide[:-1] + wide[1:]) / 2
    out = [panel.frame(x_numbers=False), panel.curve(middle, p99, ORANGE, True), panel.curve(middle, p50, BLUE, True)]
    legend = [(ORANGE, "p99"), (BLUE, "p50")]
    if limit is not None:
        out.append(_objective(x.start, panel.y.place(limit * 1e3), x.end, panel.y.place(limit * 1e3)))
        legend.append((RED, "SLO"))
    return "".join((*out, panel.legend(legend)))


def _kv_over_time(x: Scale, bottom: float, edges: Floats, series: list[dict[str, Floats]]) -> str:
    usage, middle = np.array([one["kv_usage"] for one in series]), (edges[:-1] + edges[1:]) / 2
    title = "KV blocks in use" + (" (mean and range of replicas)" if len(series) > 1 else "")
    panel = Panel(title, x, Scale(0.0, 1.0, bottom, bottom - 70))
    band = panel.band(middle, usage.min(axis=0), usage.max(axis=0), GREEN, 0.25)
    return panel.frame("simulated time (s)", percent=True) + band + panel.curve(middle, usage.mean(axis=0), GREEN)


def _padded(values: list[float]) -> tuple[float, float]:
    """The range of a logarithmic axis: all values and 4 % more at either end, or half a decade around a single one."""
    low, high = max(min(values), 1e-3), max(max(values), 1e-3)
    margin = (high / low) ** 0.04 if high > low * 1.01 else 10**0.25
    return low / margin, high * margin


def _number(value: float) -> str:
    return f"{value:,.10g}"


def _path(x: Floats, y: Floats, known: npt.NDArray[np.bool_] | None = None) -> str:
    """Path data through the points, a new piece after each that is not known."""
    points = zip(x.tolist(), y.tolist(), [True] * len(x) if known is None else known.tolist(), strict=True)
    out, command = [], "M"
    for px, py, shown in points:
        if shown:
            out.append(f"{command}{px:.1f} {py:.1f}")
        command = "L" if shown else "M"
    return "".join(out)


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="var(--grid)" stroke-width="0.8"/>'


def _objective(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="{RED}" stroke-dasharray="4 3"/>'


def _text(
    x: float,
    y: float,
    text: str,
    anchor: str = "start",
    colour: str = "currentColor",
    size: int = 12,
    weight: int = 400,
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" font-size="{size}" font-weight="{weight}" '
        f'text-anchor="{anchor}">{escape(text)}</text>'
    )


def _svg(height: float, label: str, parts: list[str]) -> str:
    inner = "".join(parts)
    return f'<svg viewBox="0 0 {WIDTH:g} {height:g}" role="img" aria-label="{label}">{inner}</svg>'
