"""Writes the folder of a run, all or nothing, and reads a summary back.

Every file is first written into a temporary folder beside the target. Only when all are complete do they take their
places: a new folder by one rename; in a folder that exists, file by file, summary.json first taken away and put back
last, so that a folder with a summary is always one complete run.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from simlora.errors import ARGUMENTS, ConfigError
from simlora.results.measured import Measured
from simlora.results.own_run import run_description, write_requests
from simlora.results.summary import to_json
from simlora.results.timeseries import write_timeseries
from simlora.runs import REQUESTS, RUN, SERVER
from simlora.runs.write import run_text
from simlora.sim.log import SimulationLog

SUMMARY, TIMESERIES = "summary.json", "timeseries.csv"
REPORT, TRACE = "report.html", "trace.json.gz"
NAMES = (SUMMARY, REQUESTS, RUN, TIMESERIES, REPORT, TRACE)
"""Everything that a run may write. Those that it does not write are removed, since they belong to an earlier run."""


Writer = Callable[[Path], object]
"""Writes one complete file at the path it is given."""


def run_writers(log: SimulationLog, summary: dict[str, Any], step_s: float = 1.0) -> dict[str, Writer]:
    """Writers of summary.json, requests.csv, run.json and timeseries.csv; step_s is the interval of the last."""
    measured = Measured(log)
    return {
        SUMMARY: text_writer(lambda: to_json(summary)),
        REQUESTS: lambda path: write_requests(measured, path),
        RUN: text_writer(lambda: run_text(run_description(measured))),
        TIMESERIES: lambda path: write_timeseries(measured, path, step_s),
    }


def text_writer(text: Callable[[], str]) -> Writer:
    """Writes the text that the function returns, in UTF-8 with Unix line ends."""

    def write(path: Path) -> None:
        path.write_bytes(text().encode())

    return write


def write_folder(folder: str | Path, writers: Mapping[str, Writer]) -> Path:
    """Write all files into the folder, or none of them if any fails or the program is interrupted.

    Raises:
        ConfigError: the folder cannot be written, or holds files of these names that no run of simlora wrote.
    """
    target = check_folder(folder)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
        try:
            for name, write in writers.items():
                write(temporary / name)
            _publish(temporary, target, list(writers))
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        allowed = f"a folder that can be written ({error.strerror or error})"
        raise ConfigError(ARGUMENTS, "--out", str(folder), allowed) from None
    return target


def check_folder(folder: str | Path) -> Path:
    """The folder's absolute path, if a run may be written there; call it before a long simulation.

    Raises:
        ConfigError: it is a file, or holds one of NAMES without being an earlier run of simlora (a recorded run, say).
    """
    target = Path(folder).expanduser().absolute()
    if target.exists() and not target.is_dir():
        raise ConfigError(ARGUMENTS, "--out", str(folder), "a folder, not a file")
    if any((target / name).exists() for name in NAMES) and not _is_own(target):
        allowed = "a new folder, or one that simlora run wrote: this one holds files of the same names from elsewhere"
        raise ConfigError(ARGUMENTS, "--out", str(folder), allowed)
    return target


def read_summary(path: str | Path) -> dict[str, Any]:
    """The summary in a run's folder, or in a summary.json.

    Raises:
        ConfigError: there is none, or it is not a summary.
    """
    file = Path(path) / SUMMARY if Path(path).is_dir() else Path(path)
    try:
        summary = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        summary = None
    if not isinstance(summary, dict) or "simlora_version" not in summary:
        allowed = "a folder that simlora run wrote, or the summary.json in it"
        raise ConfigError(ARGUMENTS, SUMMARY, str(path), allowed)
    return summary


def read_run(path: str | Path) -> dict[str, Any] | None:
    """The run.json beside a summary, or None when there is none to read."""
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    try:
        run = json.loads((folder / RUN).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return run if isinstance(run, dict) else None


def _is_own(target: Path) -> bool:
    """An earlier run of simlora; a publication that was interrupted left at least its run.json."""
    description = read_run(target)
    return description is not None and description.get("server") == SERVER


def _publish(temporary: Path, target: Path, names: list[str]) -> None:
    if not target.exists():
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o777 & ~mask)  # temporary folders are private
        temporary.rename(target)
        return
    (target / SUMMARY).unlink(missing_ok=True)
    for name in sorted(names, key=lambda name: name == SUMMARY):
        os.replace(temporary / name, target / name)
    for name in NAMES:
        if name not in names:
            (target / name).unlink(missing_ok=True)
