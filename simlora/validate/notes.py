"""What a reader of a validation must know about how a run was replayed."""

from __future__ import annotations

import numpy as np

from simlora.latency.store import choose_calibration
from simlora.runs.recorded import RecordedRequests, RecordedRun
from simlora.runs.run_file import SERVER
from simlora.validate.host import host_factor
from simlora.validate.options import ReplayOptions
from simlora.validate.scenario_of_run import scenario_of_run


def notes_of(recorded: RecordedRun, options: ReplayOptions) -> list[str]:
    """Assumptions and approximations of one run, each a sentence."""
    requests = recorded.requests
    scenario = scenario_of_run(recorded, recorded.ranks, options)
    calibration = choose_calibration(scenario.gpu_spec, scenario.engine, scenario.calibration)
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
