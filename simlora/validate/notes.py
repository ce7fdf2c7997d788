"""What a reader of a validation must know about how a run was replayed."""

from __future__ import annotations

import numpy as np

from simlora.latency.store import choose_calibration
from simlora.validate.options import ReplayOptions
from simlora.validate.recorded import RecordedRun
from simlora.validate.scenario_of_run import scenario_of_run


def notes_of(recorded: RecordedRun, options: ReplayOptions) -> list[str]:
    """Assumptions and approximations of one run, each a sentence."""
    scenario = scenario_of_run(recorded, np.zeros(0, np.int32), calibration=options.calibration, gpu=options.gpu)
    calibration = choose_calibration(scenario.gpu_spec, scenario.engine, scenario.calibration)
    notes = list(calibration.notes)
    if calibration.extrapolated:
        terms = ", ".join(calibration.extrapolated)
        notes.append(f"{recorded.name}: priced outside what was measured ({terms})")
    return [*notes, *_request_notes(recorded)]


def _request_notes(recorded: RecordedRun) -> list[str]:
    requests, run, name = recorded.requests, recorded.run, recorded.name
    if requests is None:
        return []
    notes = []
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
