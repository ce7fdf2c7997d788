"""What a fit to recorded runs did, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from simlora.latency.calibration import Calibration
from simlora.validate.fit_errors import WIDTHS, FitError, rms_error


@dataclass(frozen=True)
class FitReport:
    """The fitted calibration and its errors before and after."""

    calibration: Calibration
    path: Path
    base: str
    groups: tuple[tuple[str, float, bool], ...]
    """Name, factor, and whether the runs show it; where they do not, the base's values stayed."""
    host_factors: dict[str, float]
    """Factor on host times of machines other than the first run's."""
    before: tuple[FitError, ...]
    after: tuple[FitError, ...]
    held_out: dict[str, float]
    """Run -> RMS error on it of a fit without it. Empty with one run."""

    @property
    def lines(self) -> tuple[str, ...]:
        """The report, line by line."""
        return tuple(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{self.path}: {self.calibration.id}, fitted to recorded runs on top of {self.base}"
        for name, factor, shown in self.groups:
            yield f"  {name}: x{factor:.3f}" if shown else f"  {name}: not shown by these runs, kept"
        for machine, factor in self.host_factors.items():
            yield f"  host times of machine {machine}: x{factor:.3f}"
        yield "errors before -> after the fit (simulated / measured - 1)"
        for run in dict.fromkeys(error.run for error in self.after):
            yield f"  {run}: " + "; ".join(self._run(run))
        yield f"all: RMS {_percent(rms_error(self.before))} -> {_percent(rms_error(self.after))}"
        for run, error in self.held_out.items():
            yield f"  fitted without {run}: RMS {_percent(error)} on it"
        if not self.held_out:
            yield "one run only: no error on runs left out"

    def _run(self, run: str) -> Iterator[str]:
        for metric in dict.fromkeys(error.metric for error in self.after if error.run == run):
            before, after = _of(self.before, run, metric), _of(self.after, run, metric)
            if metric in WIDTHS:
                yield f"{metric} {before[0].error:+.1%} -> {after[0].error:+.1%}"
            else:
                yield f"{metric} ({len(after)} rows) RMS {_percent(rms_error(before))} -> {_percent(rms_error(after))}"


def _of(errors: Sequence[FitError], run: str, metric: str) -> list[FitError]:
    return [error for error in errors if error.run == run and error.metric == metric]


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
