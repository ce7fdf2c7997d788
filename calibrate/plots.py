"""Plots of the fits: every sample beside the fitted line of its series."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from .fitting.core import Point, TermFit

MOST_SERIES = 8
PANEL_INCHES = (6.0, 4.4)


def write_plots(fits: Sequence[TermFit], path: Path) -> None:
    """One column a term: its series over its axis, and fitted against measured seconds with a band of 10 %."""
    figure = Figure(figsize=(PANEL_INCHES[0] * len(fits), PANEL_INCHES[1] * 2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, len(fits), squeeze=False)
    for column, fit in enumerate(fits):
        _series(axes[0][column], fit)
        _agreement(axes[1][column], fit)
    figure.savefig(path, dpi=80)


def _series(axis: Axes, fit: TermFit) -> None:
    """Dots are samples, rings are held out, lines are fitted."""
    shown = _chosen(sorted({point.series for point in fit.points}))
    for number, name in enumerate(shown):
        points = sorted((p for p in fit.points if p.series == name), key=lambda p: p.x)
        color = f"C{number}"
        axis.plot([p.x for p in points], [p.fitted_s for p in points], color=color, linewidth=1, label=name)
        _dots(axis, (p for p in points if not p.held_out), color, hollow=False)
        _dots(axis, (p for p in points if p.held_out), color, hollow=True)
    axis.set(xscale="log", yscale="log", xlabel=fit.axis, ylabel="s", title=f"{fit.term}: dots measured, lines fitted")
    axis.legend(fontsize=6)


def _dots(axis: Axes, points: Iterable[Point], color: str, hollow: bool) -> None:
    found = list(points)
    face = "none" if hollow else color
    axis.scatter([p.x for p in found], [p.measured_s for p in found], s=14, edgecolors=color, facecolors=face)


def _chosen(names: list[str]) -> list[str]:
    """At most MOST_SERIES, spread evenly."""
    if len(names) <= MOST_SERIES:
        return names
    return [names[round(i * (len(names) - 1) / (MOST_SERIES - 1))] for i in range(MOST_SERIES)]


def _agreement(axis: Axes, fit: TermFit) -> None:
    for held_out, label in ((False, "fitted to"), (True, "held out")):
        points = [p for p in fit.points if p.held_out == held_out]
        color = "C1" if held_out else "C0"
        axis.scatter([p.measured_s for p in points], [p.fitted_s for p in points], s=8, color=color, label=label)
    ends = [min(p.measured_s for p in fit.points), max(p.measured_s for p in fit.points)]
    for factor, style in ((0.9, ":"), (1.0, "-"), (1.1, ":")):
        axis.plot(ends, [end * factor for end in ends], color="black", linewidth=0.8, linestyle=style)
    known = "none held out" if fit.held_out_error is None else f"held out {fit.held_out_error:.1%}"
    title = f"error {fit.fit_error:.1%}, {known}"
    axis.set(xscale="log", yscale="log", xlabel="measured (s)", ylabel="fitted (s)", title=title)
    axis.legend(fontsize=7)
