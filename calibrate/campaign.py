"""One call of a campaign: measure within the budget, then fit what there is."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from simlora.errors import ConfigError
from simlora.latency.calibration import Calibration

from .device import Facts, cpu_facts, gpu_facts, require_gpu
from .grid import FULL, GRIDS, QUICK, Grid
from .plan import PARTS, build_plan
from .result import CALIBRATION, Options, write_results
from .samples import CampaignFolder
from .session import Outcome, Session

DEFAULT_BUDGET_S, QUICK_BUDGET_S = 540.0, 180.0
MOST_FIT_S = 15.0
"""Kept back from the budget for the fit and the plots."""


@dataclass(frozen=True)
class CampaignResult:
    """What a call did and produced. calibration: None while too little is measured to fit any term."""

    outcome: Outcome
    calibration: Calibration | None
    folder: Path

    @property
    def lines(self) -> list[str]:
        """A summary for people."""
        outcome = self.outcome
        state = "complete" if outcome.complete else f"{len(outcome.pending)} items left: call it again"
        lines = [f"{outcome.finished} items measured in {self.folder}, {state}"]
        lines += [f"skipped {item}: {reason}" for item, reason in outcome.skipped]
        lines += [f"failed {item}: {reason}" for item, reason in outcome.failed]
        if self.calibration is None:
            return [*lines, "nothing to fit yet"]
        lines.append(f"wrote {self.folder / CALIBRATION} ({self.calibration.id})")
        for name, term in self.calibration.terms:
            if term is None:
                continue
            error = "" if term.held_out_error is None else f", held-out error {term.held_out_error:.1%}"
            lines.append(f"  {name}: {term.basis}{error}. {term.note}")
        return lines


def run_calibration(
    out: Path,
    budget_s: float | None = None,
    quick: bool = False,
    report: Callable[[str], None] = lambda line: None,
    parts: Sequence[str] = PARTS,
    options: Options | None = None,
    dry: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> CampaignResult:
    """Measure this machine's GPU into `out`, as far as the budget goes; another call with the same `out` continues.

    budget_s: default 540, or 180 with quick, which is a coarse grid of its own. report: called with one line for each
    item. parts: which of PARTS. dry: tiny shapes on the CPU, whose times mean nothing. Raises SimloraError without a
    suitable GPU, ConfigError for a bad folder, part or base calibration.
    """
    check_parts(parts)
    if out.exists() and not out.is_dir():
        raise ConfigError("<arguments>", "--out", str(out), "a folder, or a path where one can be made")
    if not dry:
        require_gpu()
    facts = cpu_facts() if dry else gpu_facts()
    folder = CampaignFolder(out)
    folder.add_provenance(facts)
    limit = budget_s or (QUICK_BUDGET_S if quick else DEFAULT_BUDGET_S)
    outcome = _measure(folder, facts, _grid(quick, dry), tuple(parts), limit, report, clock)
    fit = write_results(folder, options or Options())
    return CampaignResult(outcome, fit.calibration if fit else None, out)


def fit_only(out: Path, options: Options | None = None) -> CampaignResult:
    """Fit the samples of a campaign folder again; needs no GPU. Raises ConfigError where the folder has none."""
    folder = CampaignFolder(out)
    if not folder.rows():
        raise ConfigError("<arguments>", "--out", str(out), "a folder with samples of an earlier call")
    fit = write_results(folder, options or Options())
    done = sum(entry.status == "done" for entry in folder.done)
    return CampaignResult(Outcome(done, (), (), (), 0.0), fit.calibration if fit else None, out)


def check_parts(parts: Sequence[str]) -> None:
    """Raise ConfigError for a part that does not exist."""
    for part in parts:
        if part not in PARTS:
            raise ConfigError("<arguments>", "--only", part, f"one or more of: {', '.join(PARTS)}")


def _grid(quick: bool, dry: bool) -> Grid:
    return GRIDS["tiny"] if dry else QUICK if quick else FULL


def _measure(
    folder: CampaignFolder,
    facts: Facts,
    grid: Grid,
    parts: tuple[str, ...],
    budget_s: float,
    report: Callable[[str], None],
    clock: Callable[[], float],
) -> Outcome:
    from .bench import dry_bench, gpu_bench
    from .measure import measure

    bench = dry_bench(folder.path) if grid.name == "tiny" else gpu_bench(folder.path)
    limit = max(budget_s - MOST_FIT_S, 0.5 * budget_s)
    session = Session(folder, limit, clock, report, facts.id, facts.gpus)
    return session.run(build_plan(grid, parts), lambda item: measure(bench, item), bench.healthy)
