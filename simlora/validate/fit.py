"""Fits the engine terms of a calibration to recorded runs, without a GPU (`simlora calibrate --from-runs`).

The recorded requests are simulated again and again, and least squares with a prior on every factor bring what the
simulator reports close to what was measured. Nothing but the simulated metrics is compared, so that queueing, slots and
overlap of host and GPU are those of the simulator. Kernel terms stay, unless they are only assumed (fit_groups.py).
Runs of other machines than the first run's get one factor each on all host times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from simlora.engines.pricing import scenario_calibration
from simlora.errors import ConfigError
from simlora.latency.calibration import Calibration, EngineId, Term
from simlora.latency.store import minor_version
from simlora.runs.recorded import RecordedRun, read_recorded_run, run_folders
from simlora.scenario.root import Scenario
from simlora.validate.fit_errors import FitError, errors_of, rms_error
from simlora.validate.fit_file import FitReport, fit_start, ranges_of, write_calibration
from simlora.validate.fit_groups import (
    ASSUMED_BASES,
    KERNEL_TERMS,
    TYPICAL,
    Group,
    apply,
    groups_of,
    with_parameters,
    with_terms,
)
from simlora.validate.scenario_of_run import ReplayOptions, scenario_of_run

Floats = npt.NDArray[np.float64]
Progress = Callable[[str], None]
"""Called with a line on what happens next."""

HOST_WIDTH = 0.15
"""Prior of a machine's factor on host times: machines of one kind differ by that much."""
STEP = 0.1
"""Relative step of the numeric derivatives: simulated metrics are not smooth below a per cent."""
ROUNDS = 6
SHARES = (1.0, 0.5, 0.25, 0.1)
"""Shares of a round's change that are tried until one brings the simulation closer to what was measured."""
LEAST_GAIN = 0.01
"""A round that lowers the cost by a smaller share is the last."""
NUDGE, SWEEPS = 0.02, 3
"""Relative step of the search that follows: at its limit a server shows which way is down only from close by."""
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
    *,
    anew: bool = False,
    held_out_folder: str | Path | None = None,
    command: str = "simlora calibrate --from-runs",
) -> FitReport:
    """Fit, write the calibration, and report.

    Args:
        folders: recorded runs of one GPU type and one engine version, or folders that hold such.
        base_calibration: name or path of the one to start from; None: the nearest that is shipped.
        out: the file to write.
        anew: engine terms begin at typical values (fit_groups.TYPICAL), not at those of the base calibration.
        held_out_folder: where the fits without one run each go, as without-RUN.json.

    Raises:
        ConfigError: a run that cannot be read or simulated, or runs that do not belong together.
    """
    say = progress or (lambda line: None)
    runs = tuple(read_recorded_run(folder) for folder in run_folders(folders))
    base = _base(runs, base_calibration)
    if anew:
        base = with_parameters(base, TYPICAL)
    with TemporaryDirectory() as folder:
        problem = _Problem(runs, base, groups_of(base, runs), _machines(runs), Path(folder))
        say(f"{len(runs)} runs, {len(problem.groups)} groups of parameters, {len(problem.machines)} further machines")
        start = np.zeros(len(problem.widths))
        before = problem.errors(start)
        logs, jacobian = _solve(problem, before, say)
        after = problem.errors(logs)
        shown = np.sqrt((jacobian**2).sum(axis=0)) >= LEAST_SENSITIVITY
        without = _without_each(problem, logs, jacobian, after) if len(runs) > 1 else {}
        held_out = {}
        for run in (run for run in runs if run.name in without):
            say(f"held out: {run.name}")
            error = rms_error(problem.errors(without[run.name], [run]))
            if error is not None:
                held_out[run.name] = error
    calibration = _finished(problem, logs, shown, after, held_out, Path(out).stem, command)
    if held_out_folder is not None:
        _write_without(problem, without, calibration, shown, Path(held_out_folder))
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
    base = scenario_calibration(first)
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
    """Logarithms of all factors, and the derivatives of the residuals [residuals, factors] where the last round began.

    Gauss-Newton, its changes shortened until they help: simulated metrics jump where a server is at its limit, and a
    change that follows a jump is worse than none. Then single factors are nudged, which no jump leads astray.
    """
    widths = problem.widths
    logs, residuals = np.zeros(len(widths)), _residuals(before)
    cost = _cost(residuals, logs, widths)
    for _ in range(ROUNDS):
        jacobian = _derivatives(problem, logs, residuals)
        say(f"derivatives taken; cost {cost:.1f}")
        change, before_round = _change(jacobian, residuals, _weights(residuals), logs, widths), cost
        for share in SHARES:
            moved = logs + share * change
            found = _residuals(problem.errors(moved))
            tried = _cost(found, moved, widths)
            if tried < cost:
                logs, residuals, cost = moved, found, tried
                break
        if before_round - cost < LEAST_GAIN * cost:
            break
    for _ in range(SWEEPS):
        logs, nudged = _nudged(problem, logs, cost)
        gain, cost = cost - nudged, nudged
        say(f"factors nudged; cost {cost:.1f}")
        if gain < LEAST_GAIN * cost:
            break
    return logs, jacobian


def _nudged(problem: _Problem, logs: Floats, cost: float) -> tuple[Floats, float]:
    """The logarithms after every factor has gone up or down for as long as that lowers the cost, and the cost."""
    for index in range(len(logs)):
        for nudge in (NUDGE, -NUDGE):
            while True:
                moved = logs.copy()
                moved[index] += nudge
                tried = _cost(_residuals(problem.errors(moved)), moved, problem.widths)
                if tried >= cost:
                    break
                logs, cost = moved, tried
    return logs, cost


def _residuals(errors: Sequence[FitError]) -> Floats:
    return np.array([error.residual for error in errors])


def _cost(residuals: Floats, logs: Floats, widths: Floats) -> float:
    """Residuals count as their square, from 1 on ever less (soft L1); straying from the prior as its square."""
    return float(2.0 * (np.sqrt(1.0 + residuals**2) - 1.0).sum() + ((logs / widths) ** 2).sum())


def _weights(residuals: Floats) -> Floats:
    """Square roots of what each residual weighs in the least squares that a step solves."""
    weights: Floats = (1.0 + residuals**2) ** -0.25
    return weights


def _derivatives(problem: _Problem, logs: Floats, residuals: Floats) -> Floats:
    columns = []
    for index, width in enumerate(problem.widths):
        moved, size = logs.copy(), min(STEP, width)
        moved[index] += size
        columns.append((_residuals(problem.errors(moved)) - residuals) / size)
    return np.array(columns).T


def _change(jacobian: Floats, residuals: Floats, weights: Floats, logs: Floats, widths: Floats) -> Floats:
    """Change of the logarithms that least squares ask for, linear around where they are."""
    matrix = np.vstack([jacobian * weights[:, None], np.diag(1.0 / widths)])
    target = -np.concatenate([residuals * weights, logs / widths])
    change: Floats = np.linalg.lstsq(matrix, target, rcond=None)[0]
    return change


def _without_each(problem: _Problem, logs: Floats, jacobian: Floats, after: Sequence[FitError]) -> dict[str, Floats]:
    """Run -> logarithms of a fit without it: one more round from the solution on the others' residuals alone.

    Single measurements are what a calibration is made of; only whole runs are left out. How fast a machine is, is
    no property of the engine: its factor stays, or a machine with one run had none.
    """
    residuals, found, count = _residuals(after), {}, len(problem.groups)
    for run in (run for run in problem.runs if run.requests is not None):
        weights = _weights(residuals) * np.array([error.run != run.name for error in after])
        moved = logs + _change(jacobian, residuals, weights, logs, problem.widths)
        found[run.name] = np.concatenate([moved[:count], logs[count:]])
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
    changes: dict[str, dict[str, Any]] = {}
    for term in terms:
        old: Term = getattr(problem.base.terms, term)
        if term in KERNEL_TERMS and old.basis not in ASSUMED_BASES:
            changes[term] = {"note": f"{old.note}; within its error, moved to what recorded runs show"}
            continue
        changes[term] = {
            "basis": "scaled" if term in KERNEL_TERMS else "measured",
            "fit_error": None if fit_error is None else round(fit_error, 4),
            "held_out_error": None if left_out is None else round(left_out, 4),
            "measured": {} if term in KERNEL_TERMS else ranges,
            "note": f"Fitted to recorded runs on top of {problem.base.id}.",
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


def _write_without(
    problem: _Problem, without: dict[str, Floats], fitted: Calibration, shown: npt.NDArray[np.bool_], folder: Path
) -> None:
    """The fits without one run each, which say so."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, logs in without.items():
        calibration = problem.calibration(np.where(shown, logs, 0.0))
        provenance = fitted.provenance.model_copy(
            update={
                "source_runs": tuple(run.name for run in problem.runs if run.name != name),
                "host_factors": _factors(problem, logs),
            }
        )
        changes = {"id": f"without-{name}", "provenance": provenance, "extrapolated": fitted.extrapolated}
        write_calibration(calibration.model_copy(update=changes), folder / f"without-{name}.json")


def _factors(problem: _Problem, logs: Floats) -> dict[str, float]:
    """1 for the first run's machine, and the fitted factor of every other."""
    host = problem.runs[0].run.host
    own = {host.machine: 1.0} if host and host.machine else {}
    fitted = np.exp(logs[len(problem.groups) :]).tolist()
    return own | {name: round(value, 4) for name, value in zip(problem.machines, fitted, strict=True)}


def _versions(runs: Sequence[RecordedRun]) -> dict[str, str]:
    versions = sorted({run.run.server_version for run in runs})
    return {runs[0].run.server: ", ".join(versions)}
