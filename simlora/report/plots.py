"""Plots of a run as inline SVG for the HTML report: deterministic, no display, text and axes in the page's colours."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from simlora.results.measured import Measured
from simlora.results.quantiles import group_quantiles
from simlora.results.timeline import WAITS
from simlora.results.timeseries import replica_series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]

INTERVALS = 240
CDF_POINTS = 300
BLUE, ORANGE, GREEN, RED, GREY = "#4c78a8", "#f58518", "#54a24b", "#e45756", "#9d9da1"
WAIT_COLOURS = dict(zip(WAITS, ("#e45756", "#b279a2", "#f58518", "#bab0ac"), strict=True))
WAIT_LABELS = dict(zip(WAITS, ("adapter slot", "KV blocks", "seat", "step or budget"), strict=True))

_INK, _GRID = "#010203", "#040506"
"""Stand-ins that are replaced by the page's text and grid colours."""
_STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 9,
    "svg.fonttype": "none",
    "svg.hashsalt": "simlora",
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _GRID,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "xtick.color": _INK,
    "ytick.color": _INK,
    "grid.color": _GRID,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.5,
}


def cdf_plot(measured: Measured) -> str:
    """Cumulative distributions of TTFT and TPOT, with the objectives."""
    slo = getattr(measured.log.scenario, "slo", None)
    panels = (
        ("TTFT", measured.ttft_s, getattr(slo, "ttft_s", None), BLUE),
        ("TPOT", measured.tpot_s, getattr(slo, "tpot_s", None), GREEN),
    )

    def draw(figure: Figure) -> None:
        for axes, (name, values, limit, colour) in zip(figure.subplots(1, 2), panels, strict=True):
            _cdf(axes, name, values[measured.in_statistics & ~np.isnan(values)], limit, colour)

    return _svg(draw, 9.2, 2.7)


def timeline_plot(measured: Measured) -> str:
    """Running and waiting requests, TTFT, and KV use over time."""

    def draw(figure: Figure) -> None:
        edges = np.linspace(0.0, measured.log.end_s, INTERVALS + 1)
        series = [replica_series(measured, index, edges) for index in range(len(measured.timelines))]
        axes = figure.subplots(3, 1, sharex=True, height_ratios=(3, 2, 1.4))
        _requests_over_time(axes[0], edges, series)
        _ttft_over_time(axes[1], measured, edges)
        _kv_over_time(axes[2], edges, series)
        axes[2].set_xlabel("simulated time (s)")

    return _svg(draw, 9.2, 5.2) if measured.log.end_s > 0 and measured.timelines else ""


def _cdf(axes: Axes, name: str, values: Floats, limit: float | None, colour: str) -> None:
    axes.set_title(name)
    axes.set_xlabel("ms")
    axes.set_ylim(0, 1)
    if len(values):
        share = np.linspace(0, 1, CDF_POINTS)
        axes.plot(np.maximum(np.quantile(values, share) * 1e3, 1e-3), share, color=colour)
        axes.set_xscale("log")
    if limit is not None:
        axes.axvline(limit * 1e3, color=RED, linewidth=1, linestyle="--")
        beyond = not len(values) or limit > np.max(values)
        place: Any = {"xytext": (-3, 0), "ha": "right"} if beyond else {"xytext": (3, 0)}
        axes.annotate("SLO", (limit * 1e3, 0.03), textcoords="offset points", color=RED, fontsize=8, **place)
    if len(values):
        _round_ticks(axes.xaxis, *axes.get_xlim())


def _round_ticks(axis: Axis, low: float, high: float) -> None:
    """Label a logarithmic axis at 1, 2 and 5 of each decade, or at the decades when there are many."""
    from matplotlib.ticker import LogLocator, NullLocator

    decades = np.log10(high / low)
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades < 2.5 else (1.0,), numticks=12))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:,.10g}")


def _requests_over_time(axes: Axes, edges: Floats, series: list[dict[str, Floats]]) -> None:
    layers = {name: np.sum([one[name] for one in series], axis=0) for name in ("running", *WAITS)}
    shown = ["running", *(name for name in WAITS if layers[name].max(initial=0) > 0.05)]
    axes.stackplot(
        edges[:-1],
        [layers[name] for name in shown],
        colors=[BLUE, *(WAIT_COLOURS[name] for name in shown[1:])],
        labels=["running", *(f"waiting: {WAIT_LABELS[name]}" for name in shown[1:])],
        linewidth=0,
    )
    axes.set_title("requests")
    _legend_above(axes, len(shown))
    axes.set_xlim(0, edges[-1])
    axes.set_ylim(bottom=0)


def _ttft_over_time(axes: Axes, measured: Measured, edges: Floats) -> None:
    known = ~np.isnan(measured.ttft_s)
    wide = edges[::6]
    group = np.clip(np.searchsorted(wide, measured.log.requests.arrival_s[known], side="right") - 1, 0, len(wide) - 2)
    p50, p99 = group_quantiles(group, measured.ttft_s[known] * 1e3, len(wide) - 1, (0.5, 0.99))
    middle = (wide[:-1] + wide[1:]) / 2
    axes.plot(middle, p99, color=ORANGE, label="p99", marker=".", markersize=3)
    axes.plot(middle, p50, color=BLUE, label="p50", marker=".", markersize=3)
    limit = getattr(getattr(measured.log.scenario, "slo", None), "ttft_s", None)
    if limit is not None:
        axes.axhline(limit * 1e3, color=RED, linewidth=1, linestyle="--", label="SLO")
    if known.any():
        axes.set_yscale("log")
        _round_ticks(axes.yaxis, *axes.get_ylim())
    axes.set_title("TTFT by time of arrival (ms)")
    _legend_above(axes, 3)


def _legend_above(axes: Axes, columns: int) -> None:
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.1, ncols=columns)


def _kv_over_time(axes: Axes, edges: Floats, series: list[dict[str, Floats]]) -> None:
    usage = np.array([one["kv_usage"] for one in series])
    axes.fill_between(edges[:-1], usage.min(axis=0), usage.max(axis=0), color=GREEN, alpha=0.25, linewidth=0)
    axes.plot(edges[:-1], usage.mean(axis=0), color=GREEN)
    axes.set_title("KV blocks in use" + (" (mean and range of replicas)" if len(series) > 1 else ""))
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")


def _svg(draw: Any, width: float, height: float) -> str:
    """Draw on a new figure of the size in inches; returns an <svg> element."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        figure.patch.set_alpha(0)
        draw(figure)
        for axes in figure.axes:
            axes.patch.set_alpha(0)
        buffer = io.StringIO()
        FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None, "Creator": None})  # type: ignore[no-untyped-call]
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    return text.replace(_INK, "currentColor").replace(_GRID, "var(--grid)")
