"""What a fit to recorded runs writes: the calibration with its ranges, errors and origin, and a report as text."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simlora.latency.calibration import Calibration, Range
from simlora.runs.recorded import RecordedRequests, RecordedRun
from simlora.validate.fit_errors import GAP_WIDTHS, WIDTHS, FitError, rms_error
from simlora.validate.fit_groups import with_terms
from simlora.validate.scenario_of_run import ReplayOptions, scenario_of_run


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
            if metric in WIDTHS or metric in GAP_WIDTHS:
                yield f"{metric} {before[0].error:+.1%} -> {after[0].error:+.1%}"
            else:
                yield f"{metric} ({len(after)} rows) RMS {_percent(rms_error(before))} -> {_percent(rms_error(after))}"


def _of(errors: Sequence[FitError], run: str, metric: str) -> list[FitError]:
    return [error for error in errors if error.run == run and error.metric == metric]


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def write_calibration(calibration: Calibration, path: Path) -> None:
    """As JSON, in one go."""
    data = calibration.model_dump(mode="json", by_alias=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def ranges_of(runs: Sequence[RecordedRun]) -> dict[str, Range]:
    """Layers of the models, requests at a time, and of engines with LoRA their slots and slot ranks."""
    values: dict[str, list[float]] = {"requests": [1.0], "num_hidden_layers": [], "max_loras": [], "max_lora_rank": []}
    for run in runs:
        scenario = scenario_of_run(run, run.ranks, ReplayOptions())
        values["num_hidden_layers"].append(float(scenario.model_spec.num_hidden_layers))
        values["requests"].append(float(min(_together(run), scenario.engine.max_num_seqs)))
        if scenario.engine.enable_lora:
            values["max_loras"].append(float(scenario.engine.max_loras))
            values["max_lora_rank"].append(float(scenario.engine.max_lora_rank))
    return {name: (min(found), max(found)) for name, found in values.items() if found}


def _together(run: RecordedRun) -> int:
    """Most requests that were decoding at a time."""
    single = max([row.batch for row in run.decodes], default=1)
    return max(single, _decoding(run.requests) if run.requests is not None else 1)


def _decoding(requests: RecordedRequests) -> int:
    begin = requests.arrival_s + requests.ttft_s
    end = requests.arrival_s + requests.e2e_s
    done = ~np.isnan(end)
    times = np.concatenate([begin[done], end[done]])
    change = np.concatenate([np.ones(done.sum()), -np.ones(done.sum())])
    order = np.lexsort((change, times))
    return int(np.cumsum(change[order]).max()) if done.any() else 1


# --- engine start-up time by slots, from the times that recordings state ---------------------------------------------

START_ERROR_S = 10.0
"""Start-up times of one configuration scatter by that much: files, caches, compilation."""
START_WIDTHS_S = np.array([60.0, 60.0, 2.0])
"""Prior on base_s, lora_s and slot_s around the base calibration's values (standard deviations)."""
START_NAMES = ("base_s", "lora_s", "slot_s")


def fit_start(calibration: Calibration, runs: Sequence[RecordedRun]) -> Calibration:
    """base_s + (lora_s + slot_s * max_loras with LoRA), not below zero; as it was where no run states its start."""
    known = [run for run in runs if run.run.start_s is not None]
    if not known:
        return calibration
    old = calibration.terms.engine_start.parameters
    values = np.array([getattr(old, name) for name in START_NAMES])
    matrix, target = [], []
    for run in known:
        lora = bool(run.run.engine.get("enable_lora"))
        matrix.append([1.0, float(lora), float(run.run.engine.get("max_loras", 1)) if lora else 0.0])
        target.append(float(run.run.start_s or 0.0))
    rows = np.vstack([np.array(matrix) / START_ERROR_S, np.diag(1.0 / START_WIDTHS_S)])
    goal = np.concatenate([np.array(target) / START_ERROR_S, values / START_WIDTHS_S])
    found = np.maximum(np.linalg.lstsq(rows, goal, rcond=None)[0], 0.0)
    slots = [row[2] for row in matrix]
    change = {
        "parameters": {name: round(float(value), 3) for name, value in zip(START_NAMES, found, strict=True)},
        "basis": "measured",
        "measured": {"max_loras": (min(slots), max(slots))} if any(slots) else {},
        "note": f"Start-up times of {len(known)} recorded runs.",
    }
    return with_terms(calibration, {"engine_start": change})
