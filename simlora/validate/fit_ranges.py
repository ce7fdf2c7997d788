"""How far the runs behind a fit reach: the variables that calibrations state ranges of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simlora.latency.calibration import Range
from simlora.runs.recorded import RecordedRequests, RecordedRun
from simlora.validate.scenario_of_run import ReplayOptions, scenario_of_run


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
