"""Plays a recorded run's requests through the simulator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simlora.engines.inputs import InitialAdapters
from simlora.results.measured import Measured
from simlora.results.metrics import metrics_from_requests
from simlora.runs.recorded import RecordedRequests, RecordedRun, with_others
from simlora.scenario.root import Scenario
from simlora.sim.build import build_inputs
from simlora.sim.log import SimulationLog
from simlora.sim.simulate import simulate
from simlora.validate.host import on_its_host
from simlora.validate.options import ReplayOptions
from simlora.validate.residents import Start, starts
from simlora.validate.scenario_of_run import scenario_of_run
from simlora.workload.adapter_table import AdapterTable
from simlora.workload.request_table import RequestTable, share_ids


@dataclass(frozen=True)
class Replay:
    """One run under one assumption about its initial adapters, ready to be simulated."""

    recorded: RecordedRun
    start: Start
    scenario: Scenario
    adapters: AdapterTable
    requests: RequestTable

    def simulate(self, step_scale: float = 1.0) -> SimulationLog:
        """The simulation's log. step_scale multiplies every step time.

        Raises:
            ConfigError: the run cannot be simulated; the message names its run.json and the key.
        """
        pinned, initial = self.scenario.adapters.pinned, self.start.initial
        loaded = InitialAdapters(
            tuple(adapter for adapter in initial.gpu if adapter not in pinned),
            tuple(adapter for adapter in initial.host if adapter not in pinned),
        )
        inputs = build_inputs(self.scenario, self.adapters, self.requests, loaded, step_scale)
        run = self.recorded.run
        return simulate(on_its_host(inputs, run, step_scale), cut_s=run.cut_s)

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


def measured_metrics(recorded: RecordedRun) -> dict[str, float | None]:
    """The metrics of a run's requests as they were recorded (empty without any)."""
    requests = recorded.requests
    if requests is None:
        return {}
    return metrics_from_requests(
        requests.arrival_s,
        requests.ttft_s,
        requests.e2e_s,
        requests.output_tokens,
        cut_s=recorded.run.cut_s,
        preemptions=requests.preemptions,
    )


def replays(recorded: RecordedRun, options: ReplayOptions) -> Iterator[Replay]:
    """One replay, or two where it is not known which adapters were resident.

    Raises:
        ConfigError: the run cannot be simulated.
    """
    requests = recorded.requests
    assert requests is not None, "called for a run with requests"
    server = scenario_of_run(recorded, requests.adapters.rank[1:], options)
    for start in starts(recorded, server.engine.max_loras, server.engine.max_cpu_loras):
        adapters = with_others(requests.adapters, start.others)
        scenario = scenario_of_run(recorded, adapters.rank[1:], options) if start.others else server
        yield Replay(recorded, start, scenario, adapters, request_table(recorded, requests, scenario.engine.block_size))


def request_table(recorded: RecordedRun, requests: RecordedRequests, block_size: int) -> RequestTable:
    """The requests to replay; common prefixes as recorded, or as the workload of one of our own runs made them."""
    prefix, block_tokens = requests.prefix, requests.prefix_block_tokens
    made = (recorded.run.workload or {}).get("prefix")
    if prefix is None and isinstance(made, dict) and made.get("kind") == "share":
        block_tokens = block_size
        prefix = share_ids(requests.adapter, requests.prompt_tokens, float(made["fraction"]), block_tokens)
    return RequestTable(
        arrival_s=requests.arrival_s,
        adapter=requests.adapter,
        prompt_tokens=requests.prompt_tokens,
        output_tokens=requests.output_tokens,
        prefix=prefix,
        prefix_block_tokens=block_tokens,
        notes=(),
    )
