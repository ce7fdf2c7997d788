"""`simlora validate` without its printing: recorded runs beside their simulations, metric by metric."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from simlora.engines.pricing import scenario_calibration
from simlora.errors import ConfigError
from simlora.results.metrics import METRICS
from simlora.runs import SERVER
from simlora.runs.recorded import RecordedRequests, RecordedRun, read_recorded_run, run_folders
from simlora.validate.micro import measured_medians, simulated_medians
from simlora.validate.replay import RECORDED, host_factor, measured_metrics, replays
from simlora.validate.rows import LONGER, SHORTER, Row, ValidationReport
from simlora.validate.scenario_of_run import ReplayOptions, scenario_of_run

Progress = Callable[[str], None]
"""Called with the name of each run before it is simulated."""


def validate(
    paths: Sequence[str | Path],
    *,
    calibration: str | None = None,
    gpu: str | None = None,
    progress: Progress | None = None,
) -> ValidationReport:
    """Simulate recorded runs and compare.

    Args:
        paths: folders of recorded runs, or folders that hold such folders.
        calibration: name or path; None: the nearest to each run.
        gpu: catalogue name, for runs whose GPU the catalogue lacks.

    Raises:
        ConfigError: a run that cannot be read or simulated. Nothing is simulated before all are read.
    """
    options = ReplayOptions(calibration, gpu)
    runs = [read_recorded_run(folder) for folder in run_folders(paths)]
    _check_names(runs)
    rows, notes = [], []
    for recorded in runs:
        if progress is not None:
            progress(recorded.name)
        rows += compare(recorded, options)
        notes += notes_of(recorded, options)
    return ValidationReport(tuple(rows), tuple(dict.fromkeys(notes)))


def _check_names(runs: Sequence[RecordedRun]) -> None:
    seen: dict[str, RecordedRun] = {}
    for recorded in runs:
        other = seen.setdefault(recorded.name, recorded)
        if other is not recorded:
            allowed = f"another name than that of {other.source}, since rows are told apart by it"
            raise ConfigError(recorded.source, "name", recorded.name, allowed)


T = TypeVar("T")


def compare(recorded: RecordedRun, options: ReplayOptions | None = None) -> list[Row]:
    """All rows of one run: the metrics of its requests, then its single measurements.

    Raises:
        ConfigError: the run cannot be simulated.
    """
    options = options or ReplayOptions()
    rows = list(_request_rows(recorded, options)) if recorded.requests is not None else []
    return [*rows, *_micro_rows(recorded, options)]


def _request_rows(recorded: RecordedRun, options: ReplayOptions) -> Iterator[Row]:
    measured = measured_metrics(recorded)
    for replay in replays(recorded, options):
        base, shorter, longer = _three(replay.metrics)
        key = {} if replay.start.label == RECORDED else {"initial_adapters": replay.start.label}
        for name in METRICS:
            yield Row(recorded.name, name, measured[name], base[name], shorter[name], longer[name], key)


def _micro_rows(recorded: RecordedRun, options: ReplayOptions) -> Iterator[Row]:
    measured = measured_medians(recorded)
    if not measured:
        return
    base, shorter, longer = _three(lambda scale: simulated_medians(recorded, options, scale))
    for item, value in measured.items():
        metric, key = item.metric, item.key
        yield Row(recorded.name, metric, value, base.get(item), shorter.get(item), longer.get(item), key)


def _three(simulated: Callable[[float], T]) -> tuple[T, T, T]:
    return simulated(1.0), simulated(SHORTER), simulated(LONGER)


def notes_of(recorded: RecordedRun, options: ReplayOptions) -> list[str]:
    """Assumptions and approximations of one run, each a sentence."""
    requests = recorded.requests
    scenario = scenario_of_run(recorded, recorded.ranks, options)
    calibration = scenario_calibration(scenario)
    notes = list(calibration.notes)
    version = scenario.engine.version
    if recorded.run.server != SERVER and not f"{recorded.run.server_version}.".startswith(f"{version}."):
        notes.append(
            f"{recorded.name}: recorded on {recorded.run.server} {recorded.run.server_version}, simulated by the rules "
            f"of {version}"
        )
    factor = host_factor(recorded.run, calibration)
    if factor != 1.0 and recorded.run.host is not None:
        machine = recorded.run.host.machine
        notes.append(f"{recorded.name}: host times x{factor:.3f}, as the calibration has them for machine {machine}")
    if calibration.extrapolated:
        terms = ", ".join(calibration.extrapolated)
        notes.append(f"{recorded.name}: priced outside what was measured ({terms})")
    if requests is not None:
        notes += _request_notes(recorded, requests)
        if scenario.engine.enable_prefix_caching and requests.prefix is None and recorded.run.server != SERVER:
            notes.append(
                f"{recorded.name}: prefix caching was on, prompts are not recorded: replayed without cache hits"
            )
    return notes


def _request_notes(recorded: RecordedRun, requests: RecordedRequests) -> list[str]:
    run, name, notes = recorded.run, recorded.name, []
    if requests.rejected:
        notes.append(f"{name}: {requests.rejected} requests that the server refused are left out")
    unfinished = int(np.isnan(requests.e2e_s).sum())
    if run.cut_s is not None:
        notes.append(
            f"{name}: cut at {run.cut_s:g} s; {unfinished} requests had not finished and count on neither side"
        )
    residents = run.initial_adapters
    if requests.adapter.any() and residents is None:
        notes.append(f"{name}: initial adapters unknown, so both extremes are simulated: cold, and all in host memory")
    elif residents is not None and (residents.gpu_others or residents.host_others):
        notes.append(
            f"{name}: {residents.gpu_others} adapters in slots and {residents.host_others} in host memory that no "
            "request uses are spread evenly over the order of use"
        )
    return notes
