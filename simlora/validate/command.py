"""`simlora validate` without its printing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from simlora.errors import ConfigError
from simlora.runs.folders import run_folders
from simlora.runs.recorded import RecordedRun, read_recorded_run
from simlora.validate.compare import compare
from simlora.validate.notes import notes_of
from simlora.validate.options import ReplayOptions
from simlora.validate.report import ValidationReport

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
