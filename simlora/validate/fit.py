"""Fits the engine terms of a calibration to recorded runs, without a GPU (`simlora calibrate --from-runs`).

The recorded requests are simulated again and again, and least squares with a prior on every factor bring what the
simulator reports close to what was measured. Nothing but the simulated metrics is compared, so that queueing, slots and
overlap of host and GPU are those of the simulator. Kernel terms stay, unless they are only assumed (fit_groups.py).
Runs of other machines than the first run's get one factor each on all host times.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from simlora.errors import ConfigError
from simlora.latency.calibration import Calibration, EngineId
from simlora.latency.store import choose_calibration, minor_version
from simlora.runs.recorded import RecordedRun, read_recorded_run, run_folders
from simlora.scenario.root import Scenario
from simlora.validate.fit_errors import FitError, errors_of, rms_error
from simlora.validate.fit_groups import ASSUMED_BASES, KERNEL_TERMS, Group, apply, groups_of, with_terms
from simlora.validate.fit_ranges import ranges_of
from simlora.validate.fit_report import FitReport
from simlora.validate.fit_start import fit_start
from simlora.validate.scenario_of_run import ReplayOptions, scenario_of_run

Floats = npt.NDArray[np.float64]
Progress = Callable[[str], None]
"""Called with a line on what happens next."""

HOST_WIDTH = 0.15
"""Prior of a machine's factor on host times: machines of one kind differ by that much."""
STEP = 0.1
"""Relative step of the numeric derivatives: simulated metrics are not smooth below a per cent."""
ITERATIONS = 8
LEAST_SENSITIVITY = 0.5
"""A group whose factor e moves all residuals together by less is not shown by the runs, and stays as it was."""


@dataclass(frozen=True)
class _Problem:
    """The runs, the calibration they start from, and how candidates are simulated."""

    runs: tuple[RecordedRun, ...]
    base: Calibration
    groups: tuple[Group, ...]
    machines: tuple[str, ...]
    """Machines with a factor of their own."""
    folder: Path

    def calibration(self, logs: Floats) -> Calibration:
        """The base with the logarithms of all factors: groups first, then machines."""
        fitted = apply(self.base, self.groups, logs[: len(self.groups)].tolist())
        factors = dict(zip(self.machines, np.exp(logs[len(self.groups) :]).tolist(), strict=True))
        provenance = fitted.provenance.model_copy(update={"host_factors": factors})
        return fitted.model_copy(update={"provenance": provenance})

    def errors(self, logs: Floats, runs: Sequence[RecordedRun] | None = None) -> list[FitError]:
        path = self.folder / "candidate.json"
        write_calibration(self.calibration(logs), path)
        options = ReplayOptions(calibration=str(path))
        return [error for run in (self.runs if runs is None else runs) for error in errors_of(run, options)]

    @property
    def widths(self) -> Floats:
        return np.array([group.width for group in self.groups] + [HOST_WIDTH] * len(self.machines))


def fit_from_runs(
    folders: Sequence[str | Path],
    base_calibration: str | None,
    out: str | Path,
    progress: Progress | None = None,
    command: str = "simlora calibrate --from-runs",
) -> FitReport:
    """Fit, write the calibration, and report.

    Args:
        folders: recorded runs of one GPU type and one engine version, or folders that hold such.
        base_calibration: name or path of the one to start from; None: the nearest that is shipped.
        out: the file to write.

    Raises:
        ConfigError: a run that cannot be read or simulated, or runs that do not belong together.
    """
    say = progress or (lambda line: None)
    runs = tuple(read_recorded_run(folder) for folder in run_folders(folders))
    base = _base(runs, base_calibration)
    with TemporaryDirectory() as folder:
        problem = _Problem(runs, base, groups_of(base, runs), _machines(runs), Path(folder))
        say(f"{len(runs)} runs, {len(problem.groups)} groups of parameters, {len(problem.machines)} further machines")
        start = np.zeros(len(problem.widths))
        before = problem.errors(start)
        logs, jacobian = _solve(problem, before, say)
        after = problem.errors(logs)
        shown = np.sqrt((jacobian**2).sum(axis=0)) >= LEAST_SENSITIVITY
        held_out = _held_out(problem, logs, jacobian, after, say)
    calibration = _finished(problem, logs, shown, after, held_out, Path(out).stem, command)
    write_calibration(calibration, Path(out))
    factors = np.exp(logs)
    return FitReport(
        calibration=calibration,
        path=Path(out),
        base=base.id,
        groups=tuple(
            (group.name, float(factor), bool(visible))
            for group, factor, visible in zip(problem.groups, factors, shown, strict=False)
        ),
        host_factors=dict(zip(problem.machines, factors[len(problem.groups) :].tolist(), strict=True)),
        before=tuple(before),
        after=tuple(after),
        held_out=held_out,
    )


def write_calibration(calibration: Calibration, path: Path) -> None:
    """As JSON, in one go."""
    data = calibration.model_dump(mode="json", by_alias=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    os.replace(temporary, path)


# --- what to fit -----------------------------------------------------------------------------------------------------


def _base(runs: Sequence[RecordedRun], name: str | None) -> Calibration:
    """The starting calibration, carried over to the runs' GPU and engine version."""
    scenarios = [scenario_of_run(run, run.ranks, ReplayOptions(calibration=name)) for run in runs]
    first = scenarios[0]
    for run, scenario in zip(runs, scenarios, strict=True):
        for key, of_run, of_first in (
            ("gpu", scenario.gpu.model_dump(mode="json"), first.gpu.model_dump(mode="json")),
            ("server_version", _engine(scenario), _engine(first)),
        ):
            if of_run != of_first:
                raise ConfigError(run.source, key, of_run, f"{of_first}, as in {runs[0].source}: one fit, one server")
    base = choose_calibration(first.gpu_spec, first.engine, name)
    engine = EngineId(kind=first.engine.kind, version=minor_version(first.engine.version))
    cpu = next((run.run.host.cpu for run in runs if run.run.host and run.run.host.cpu), None)
    provenance = base.provenance.model_copy(update={"host_cpu": cpu or "not recorded", "host_factors": {}})
    return base.model_copy(update={"engine": engine, "provenance": provenance, "extrapolated": (), "notes": ()})


def _engine(scenario: Scenario) -> str:
    return f"{scenario.engine.kind} {minor_version(scenario.engine.version)}"


def _machines(runs: Sequence[RecordedRun]) -> tuple[str, ...]:
    """Named machines other than the first run's, in order."""
    names = [run.run.host.machine if run.run.host else None for run in runs]
    return tuple(dict.fromkeys(name for name in names if name is not None and name != names[0]))


# --- least squares ---------------------------------------------------------------------------------------------------


def _solve(problem: _Problem, before: Sequence[FitError], say: Progress) -> tuple[Floats, Floats]:
    """Logarithms of all factors, and the derivatives of the residuals there."""
    widths, count = problem.widths, len(before)
    latest: dict[str, Floats] = {}

    def residuals(shifted: Floats) -> Floats:
        logs = shifted - 1.0
        of_runs = [error.residual for error in problem.errors(logs)]
        return np.array(of_runs + (logs / widths).tolist())

    def derivatives(shifted: Floats) -> Floats:
        here = residuals(shifted)
        columns = []
        for index in range(len(shifted)):
            moved = shifted.copy()
            moved[index] += STEP
            columns.append((residuals(moved) - here) / STEP)
        say(f"derivatives taken; sum of squares {float((here**2).sum()):.0f}")
        latest["jacobian"] = np.array(columns).T
        return latest["jacobian"]

    solution = least_squares(
        residuals, np.ones(len(widths)), jac=derivatives, loss="soft_l1", max_nfev=ITERATIONS, x_scale=1.0, ftol=1e-3
    )
    return solution.x - 1.0, latest["jacobian"][:count]


def _held_out(
    problem: _Problem, logs: Floats, jacobian: Floats, after: Sequence[FitError], say: Progress
) -> dict[str, float]:
    """Run -> RMS error of a fit without it: the others' least squares, linear around the solution, then simulated."""
    if len(problem.runs) < 2:
        return {}
    found: dict[str, float] = {}
    residual = np.array([error.residual for error in after])
    prior = np.diag(1.0 / problem.widths)
    for run in problem.runs:
        say(f"held out: {run.name}")
        kept = np.array([error.run != run.name for error in after])
        weight = kept / np.sqrt(1.0 + residual**2)  # as soft_l1 weighs them
        matrix = np.vstack([jacobian * weight[:, None], prior])
        target = -np.concatenate([residual * weight, prior @ logs])
        change = np.linalg.lstsq(matrix, target, rcond=None)[0]
        error = rms_error(problem.errors(logs + change, [run]))
        if error is not None:
            found[run.name] = error
    return found


# --- the file --------------------------------------------------------------------------------------------------------


def _finished(
    problem: _Problem,
    logs: Floats,
    shown: npt.NDArray[np.bool_],
    after: Sequence[FitError],
    held_out: dict[str, float],
    name: str,
    command: str,
) -> Calibration:
    fitted = problem.calibration(np.where(shown, logs, 0.0))
    terms = dict.fromkeys(
        term for group, seen in zip(problem.groups, shown, strict=False) if seen for term in group.terms
    )
    fit_error = rms_error(after)
    left_out = max(held_out.values()) if held_out else None
    ranges = ranges_of(problem.runs)
    changes = {
        term: {
            "basis": "scaled" if term in KERNEL_TERMS else "measured",
            "fit_error": None if fit_error is None else round(fit_error, 4),
            "held_out_error": None if left_out is None else round(left_out, 4),
            "measured": {} if term in KERNEL_TERMS else ranges,
            "note": f"Fitted to recorded runs on top of {problem.base.id}.",
        }
        for term in terms
    }
    fitted = fit_start(with_terms(fitted, changes), problem.runs)
    provenance = fitted.provenance.model_copy(
        update={
            "date": date.today().isoformat(),
            "command": command,
            "source_runs": tuple(run.name for run in problem.runs),
            "versions": _versions(problem.runs),
            "host_factors": _factors(problem, logs),
        }
    )
    assumed = [term for term in KERNEL_TERMS if getattr(fitted.terms, term).basis in ASSUMED_BASES]
    return fitted.model_copy(update={"id": name, "provenance": provenance, "extrapolated": tuple(assumed)})


def _factors(problem: _Problem, logs: Floats) -> dict[str, float]:
    """1 for the first run's machine, and the fitted factor of every other."""
    host = problem.runs[0].run.host
    own = {host.machine: 1.0} if host and host.machine else {}
    fitted = np.exp(logs[len(problem.groups) :]).tolist()
    return own | {name: round(value, 4) for name, value in zip(problem.machines, fitted, strict=True)}


def _versions(runs: Sequence[RecordedRun]) -> dict[str, str]:
    versions = sorted({run.run.server_version for run in runs})
    return {runs[0].run.server: ", ".join(versions)}
