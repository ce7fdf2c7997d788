"""Plays a recorded run's requests through the simulator.

A recording lists the resident adapters that its requests use, oldest first, and only counts the others. Those others
get numbers above the requests' adapters, so that slots and host memory are as full as they were. Where they stand in
the order of use is not known: they are spread evenly among the listed ones, each gap with the others first.

Host times differ between machines of one kind. A calibration lists the machines that its runs were recorded on, with a
factor on all host times for each. A run on such a machine is simulated with its factor; a run on any other with the
calibration's own host times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from simlora.engines.inputs import InitialAdapters, Inputs
from simlora.errors import ConfigError
from simlora.latency.calibration import Calibration
from simlora.latency.scaling import scale_host
from simlora.results.measured import Measured
from simlora.results.metrics import metrics_from_requests
from simlora.runs.recorded import RecordedRequests, RecordedRun, with_others
from simlora.runs.run_file import AdapterName, Residents, RunFile
from simlora.scenario.root import Scenario
from simlora.sim.build import build_inputs
from simlora.sim.log import SimulationLog
from simlora.sim.simulate import simulate
from simlora.validate.scenario_of_run import ReplayOptions, scenario_of_run
from simlora.workload.adapter_table import AdapterTable
from simlora.workload.request_table import RequestTable, share_ids

RECORDED, COLD, ALL_HOST = "recorded", "cold", "all-host"


@dataclass(frozen=True)
class Start:
    """One assumption about the residents."""

    label: str
    """RECORDED, or for unknown residents COLD (none) or ALL_HOST (every adapter in host memory, none in a slot)."""
    initial: InitialAdapters
    others: int
    """Adapters count + 1 .. count + others are resident, and no request uses them."""


def starts(recorded: RecordedRun, slots: int, host: int) -> tuple[Start, ...]:
    """How a replay may begin: as recorded, or both extremes where it was not recorded and matters.

    Args:
        slots, host: max_loras and max_cpu_loras of the server.

    Raises:
        ConfigError: residents that do not fit, or that the run cannot have had.
    """
    requests, residents = recorded.requests, recorded.run.initial_adapters
    assert requests is not None, "called for a run with requests"
    if not requests.adapter.any():
        return (Start(RECORDED, InitialAdapters(), 0),)
    if residents is None:
        return Start(COLD, InitialAdapters(), 0), Start(ALL_HOST, InitialAdapters(host=_most_used(requests, host)), 0)
    return (_recorded(recorded.source, residents, requests, slots, host),)


def _recorded(source: str, residents: Residents, requests: RecordedRequests, slots: int, host: int) -> Start:
    """What is in a slot is in host memory, too, whether the recording says so or not."""
    count = requests.adapters.count
    gpu_ids = _ids(source, "initial_adapters.gpu", residents.gpu, requests)
    host_ids = _ids(source, "initial_adapters.host", residents.host, requests)
    for key, used, limit in (
        ("gpu", len(gpu_ids) + residents.gpu_others, slots),
        ("host", len(host_ids) + residents.host_others, host),
    ):
        if used > limit:
            allowed = f"at most {limit} residents, the others included"
            raise ConfigError(source, f"initial_adapters.{key}", used, allowed)
    others = max(residents.gpu_others, residents.host_others)
    # The newest of the others in host memory are those in slots.
    other_ids = range(count + 1, count + others + 1)
    gpu = spread(gpu_ids, other_ids[others - residents.gpu_others :])
    cached = [*spread(host_ids, other_ids), *(adapter for adapter in gpu_ids if adapter not in host_ids)]
    return Start(RECORDED, InitialAdapters(tuple(gpu), tuple(cached[-host:])), others)


def spread(listed: Sequence[int], others: Sequence[int]) -> list[int]:
    """Both in one order, the others spread evenly among the listed, before each of them."""
    merged: list[int] = []
    total = len(listed) + len(others)
    remaining = iter(others)
    for index, adapter in enumerate(listed, start=1):
        place = index * total // len(listed)
        while len(merged) < place - 1:
            merged.append(next(remaining))
        merged.append(adapter)
    return [*merged, *remaining]


def _ids(source: str, key: str, listed: Sequence[AdapterName], requests: RecordedRequests) -> list[int]:
    names, count = requests.adapters.names, requests.adapters.count
    ids = []
    for name in listed:
        adapter = names.index(str(name)) + 1 if names and str(name) in names else name
        if not isinstance(adapter, int) or isinstance(adapter, bool) or not 1 <= adapter <= count:
            raise ConfigError(source, key, name, "adapters by the numbers or names that requests.csv has for them")
        ids.append(adapter)
    if len(set(ids)) < len(ids):
        raise ConfigError(source, key, list(listed), "each adapter once")
    return ids


def _most_used(requests: RecordedRequests, host: int) -> tuple[int, ...]:
    """The adapters asked for most, as many as host memory holds; the most popular is the newest."""
    counts = np.bincount(requests.adapter, minlength=requests.adapters.count + 1)[1:]
    order = np.argsort(counts, kind="stable") + 1
    used = [int(adapter) for adapter in order if counts[adapter - 1]]
    return tuple(used[-host:])


def host_factor(run: RunFile, calibration: Calibration) -> float:
    """Factor on host times for the run's machine; 1 where the calibration does not know it."""
    host, provenance = run.host, calibration.provenance
    if host is None or host.machine is None or host.cpu is None:
        return 1.0
    cpu = host.cpu.partition("(")[0].strip()  # without remarks
    if not cpu or cpu not in provenance.host_cpu:
        return 1.0
    return provenance.host_factors.get(host.machine, 1.0)


def on_its_host(inputs: Inputs, run: RunFile, step_scale: float) -> Inputs:
    """The inputs with the latency of the run's machine."""
    latency = inputs.latency
    factor = host_factor(run, latency.calibration)
    if factor == 1.0:
        return inputs
    latency = latency.with_calibration(scale_host(latency.calibration, factor), step_scale)
    return replace(inputs, latency=latency)


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
        return self.metrics_of(self.simulate(step_scale))

    def metrics_of(self, log: SimulationLog) -> dict[str, float | None]:
        """The metrics of one of its simulations."""
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
