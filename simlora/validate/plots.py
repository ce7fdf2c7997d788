"""Plots of a measured run against its simulation: distributions of TTFT and TPOT, and the server's state over time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from simlora.errors import ConfigError
from simlora.results.measured import Measured
from simlora.results.timeline import WAITS
from simlora.results.timeseries import interval_edges, replica_series
from simlora.runs.recorded import RecordedRequests, RecordedRun, read_recorded_run, run_folders
from simlora.sim.log import SimulationLog
from simlora.validate.replay import replays
from simlora.validate.scenario_of_run import ReplayOptions

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]
Line = tuple[Floats, npt.NDArray[Any]]
"""Times, and values at them."""

MEASURED, SIMULATED = "measured", "simulated"
_COLOURS = {MEASURED: "black", SIMULATED: "tab:orange"}
_INTERVALS = 300
"""Points of the simulated lines over time."""


def write_plots(
    paths: Sequence[str | Path], folder: str | Path, *, calibration: str | None = None, gpu: str | None = None
) -> list[Path]:
    """Write RUN-cdf.png and RUN-time.png for each run with requests, under its first assumption on residents.

    Args:
        paths, calibration, gpu: as in validate.

    Raises:
        ConfigError: a run cannot be read or simulated, or the folder not written.
    """
    options, target, written = ReplayOptions(calibration, gpu), Path(folder), []
    for recorded in map(read_recorded_run, run_folders(paths)):
        if recorded.requests is None:
            continue
        log = next(replays(recorded, options)).simulate()
        for name, figure in (("cdf", distributions(recorded, log)), ("time", over_time(recorded, log))):
            written.append(_save(figure, target / f"{_file_name(recorded.name)}-{name}.png"))
    return written


def _save(figure: Figure, path: Path) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise ConfigError("<arguments>", "--plots", str(path), f"a file that can be written ({error})") from None
    return path


def _file_name(run: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", run)


def distributions(recorded: RecordedRun, log: SimulationLog) -> Figure:
    """Cumulative distributions of TTFT and TPOT over the requests that finished, in ms on logarithmic axes."""
    requests, simulated = recorded.requests, Measured(log)
    assert requests is not None, "called for a run with requests"
    figure, axes = _figure(recorded.name, 1, 2, (10, 4))
    pairs = (
        ("TTFT (ms)", requests.ttft_s[~np.isnan(requests.e2e_s)], simulated.ttft_s[simulated.completed]),
        ("TPOT (ms)", _tpot_s(requests), simulated.tpot_s),
    )
    for axis, (label, *sides) in zip(axes, pairs, strict=True):
        for side, values in zip((MEASURED, SIMULATED), sides, strict=True):
            known = np.sort(values[~np.isnan(values)])
            share = np.arange(1, len(known) + 1) / max(len(known), 1)
            axis.step(1000 * known, share, where="post", label=side, color=_COLOURS[side])
        axis.set(xlabel=label, ylabel="share of requests", xscale="log", ylim=(0, 1))
        axis.grid(alpha=0.3)
        axis.legend()
    return figure


def over_time(recorded: RecordedRun, log: SimulationLog) -> Figure:
    """Running and waiting requests, KV usage and preemptions so far; measured ones only where steps.csv has them."""
    figure, axes = _figure(recorded.name, 4, 1, (10, 10))
    sides = {MEASURED: _measured(recorded), SIMULATED: _series(log)}
    labels = {"running": "running", "waiting": "waiting", "kv_usage": "KV usage", "preemptions": "preemptions so far"}
    for axis, (name, label) in zip(axes, labels.items(), strict=True):
        for side, lines in sides.items():
            if name in lines:
                style = "steps-post" if name == "preemptions" else "default"
                axis.plot(*lines[name], label=side, color=_COLOURS[side], linewidth=0.8, drawstyle=style)
        axis.set(ylabel=label, ylim=(0, None))
        axis.grid(alpha=0.3)
    axes[-1].set(xlabel="time (s)")
    for axis in (axes[0], axes[-1]):
        axis.legend()
    return figure


def _measured(recorded: RecordedRun) -> dict[str, Line]:
    """What steps.csv has."""
    steps = recorded.steps
    if steps is None:
        return {}
    values = {"running": steps.running, "waiting": steps.waiting, "kv_usage": steps.kv_usage}
    return {name: (steps.t_s, line) for name, line in (values | {"preemptions": np.cumsum(steps.preempted)}).items()}


def _series(log: SimulationLog) -> dict[str, Line]:
    """Time means of all replicas together; KV usage is their average; preemptions as they happen."""
    measured = Measured(log)
    edges = interval_edges(log.end_s, log.end_s / _INTERVALS or 1.0)
    parts = [replica_series(measured, index, edges) for index in range(len(log.replicas))]
    waiting = sum((part[name] for part in parts for name in WAITS), start=np.zeros(len(edges) - 1))
    running = sum((part["running"] for part in parts), start=np.zeros(len(edges) - 1))
    kv_usage = np.mean([part["kv_usage"] for part in parts], axis=0)
    means = {"running": running, "waiting": waiting, "kv_usage": kv_usage}
    return {name: (parts[0]["t_s"], line) for name, line in means.items()} | {"preemptions": preemptions_so_far(log)}


def preemptions_so_far(log: SimulationLog) -> Line:
    """Times from 0 to the end, and the preemptions of all replicas up to then."""
    runs = [replica.runs for replica in log.replicas]
    when = np.concatenate([columns["start_s"] for columns in runs])
    count = np.concatenate([columns["preemptions"] for columns in runs])
    order = np.argsort(when, kind="stable")
    order = order[count[order] > 0]
    total = np.concatenate([[0.0], np.cumsum(count[order])])
    return np.concatenate([[0.0], when[order], [log.end_s]]), np.append(total, total[-1])


def _tpot_s(requests: RecordedRequests) -> Floats:
    later = requests.output_tokens - 1
    return np.where(later >= 1, (requests.e2e_s - requests.ttft_s) / np.maximum(later, 1), np.nan)


def _figure(title: str, rows: int, columns: int, size: tuple[float, float]) -> tuple[Figure, Sequence[Axes]]:
    from matplotlib.figure import Figure  # slow to import, and not needed for tables

    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(title)
    axes: Any = figure.subplots(rows, columns, sharex=rows > 1)
    return figure, list(axes)
