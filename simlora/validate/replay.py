"""Plays a recorded run's requests through the simulator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from simlora.results.latency import Measured
from simlora.results.metrics import metrics_from_requests
from simlora.sim.build import InitialAdapters, build_inputs
from simlora.sim.log import SimulationLog
from simlora.sim.simulate import simulate
from simlora.validate.options import ReplayOptions
from simlora.validate.recorded import RecordedRequests, RecordedRun
from simlora.validate.residents import Start, starts
from simlora.validate.scaled import scaled
from simlora.validate.scenario_of_run import scenario_of_run
from simlora.workload.adapters import AdapterTable
from simlora.workload.request_table import RequestTable


@dataclass(frozen=True)
class Replay:
    """One run under one assumption about its initial adapters, ready to be simulated."""

    recorded: RecordedRun
    start: Start
    options: ReplayOptions

    def simulate(self, step_scale: float = 1.0) -> SimulationLog:
        """The simulation's log. step_scale multiplies every step time.

        Raises:
            ConfigError: the run cannot be simulated; the message names its run.json and the key.
        """
        requests = _requests(self.recorded)
        adapters = with_others(requests.adapters, self.start.others)
        options = self.options
        scenario = scenario_of_run(self.recorded, adapters.rank[1:], calibration=options.calibration, gpu=options.gpu)
        pinned = scenario.adapters.pinned
        initial = InitialAdapters(
            tuple(adapter for adapter in self.start.initial.gpu if adapter not in pinned),
            tuple(adapter for adapter in self.start.initial.host if adapter not in pinned),
        )
        inputs = build_inputs(scenario, adapters, request_table(requests), initial)
        inputs = replace(inputs, latency=scaled(inputs.latency, step_scale))
        return simulate(inputs, cut_s=self.recorded.run.cut_s)

    def metrics(self, step_scale: float = 1.0) -> dict[str, float | None]:
        """The simulated metrics, by the function that computes the measured ones."""
        log = self.simulate(step_scale)
        measured, requests = Measured(log), log.requests
        return metrics_from_requests(
            requests.arrival_s,
            measured.ttft_s,
            measured.e2e_s,
            requests.output_tokens,
            completed=measured.completed,
            cut_s=self.recorded.run.cut_s,
            preemptions=requests.preemptions,
        )


def replays(recorded: RecordedRun, options: ReplayOptions) -> Iterator[Replay]:
    """One replay, or two where it is not known which adapters were resident."""
    requests = _requests(recorded)
    scenario = scenario_of_run(recorded, requests.adapters.rank[1:], calibration=options.calibration, gpu=options.gpu)
    for start in starts(recorded, scenario.engine.max_loras, scenario.engine.max_cpu_loras):
        yield Replay(recorded, start, options)


def request_table(requests: RecordedRequests) -> RequestTable:
    return RequestTable(
        arrival_s=requests.arrival_s,
        adapter=requests.adapter,
        prompt_tokens=requests.prompt_tokens,
        output_tokens=requests.output_tokens,
        prefix=None,
        prefix_block_tokens=1,
        notes=(),
    )


def with_others(adapters: AdapterTable, others: int) -> AdapterTable:
    """The table with adapters that no request uses; their rank is the largest there is, and never matters."""
    if not others:
        return adapters
    rank = np.full(others, adapters.rank.max(), dtype=np.int32)
    return replace(
        adapters,
        count=adapters.count + others,
        rank=np.concatenate([adapters.rank, rank]),
        probability=np.concatenate([adapters.probability, np.zeros(others)]),
        names=adapters.names and (*adapters.names, *(f"other-{index}" for index in range(1, others + 1))),
    )


def _requests(recorded: RecordedRun) -> RecordedRequests:
    assert recorded.requests is not None, "called for a run with requests"
    return recorded.requests
