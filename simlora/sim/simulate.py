"""Runs a scenario and returns its log."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from simlora.cluster.dedicated import Dedicated
from simlora.engines.inputs import Inputs
from simlora.sim.build import calibration_record, load_bytes, make_replicas, make_requests, make_router
from simlora.sim.clock import Clock
from simlora.sim.dedicated import cold_start_s, paid_s
from simlora.sim.invariants import InvariantChecker
from simlora.sim.log import SimulationLog
from simlora.sim.log_builder import extrapolated_seconds, replica_log, request_log
from simlora.sim.simulation import Progress, Simulation


def simulate(
    inputs: Inputs,
    *,
    coalesce: bool = True,
    check: bool = False,
    cut_s: float | None = None,
    progress: Progress | None = None,
) -> SimulationLog:
    """Play the inputs to the end, or to cut_s.

    coalesce=False steps one by one: the oracle that the fast mode must equal exactly. check verifies the invariants at
    every plan and raises InvariantError. Without cut_s the scenario's own end applies.
    """
    with _collector_paused():
        return _simulate(inputs, coalesce, check, cut_s, progress)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """A run keeps nearly everything that it makes, so the cyclic garbage collector would only walk live records, over
    and over: a third of the time of a long run."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _simulate(
    inputs: Inputs, coalesce: bool, check: bool, cut_s: float | None, progress: Progress | None
) -> SimulationLog:
    scenario = inputs.scenario
    if cut_s is None and scenario.workload.end == "cut":
        cut_s = scenario.workload.duration_s or float(inputs.requests.arrival_s[-1])
    clock = Clock()
    requests = make_requests(inputs)
    replicas = make_replicas(inputs, requests, coalesce)
    checker = InvariantChecker() if check else None
    for replica in replicas:
        replica.on_boundary = checker.check if checker else None
    router, config = make_router(inputs), scenario.cluster.router
    scrape_s, delay_s = (0.0, 0.0) if inputs.dedicated is not None else config.view_age_s
    in_s = inputs.latency.frontend_in_s
    simulation = Simulation(clock, replicas, router, requests, in_s, scrape_s, delay_s, cut_s, progress)
    simulation.run()
    if checker is not None:
        checker.check_end(requests, drained=cut_s is None)
    pinned = scenario.adapters.pinned if scenario.engine.enable_lora else ()
    gpus, start_s = scenario.gpus_per_replica, inputs.latency.engine_start_s
    asynchronous = scenario.engine.async_scheduling and scenario.engine.pipeline_parallel_size == 1
    logs = [replica_log(r, asynchronous, gpus, load_bytes(inputs, r), start_s) for r in replicas]
    end_s = simulation.end_s if cut_s is not None else float("inf")
    log_of_requests = request_log(requests, end_s)
    if isinstance(router, Dedicated) and inputs.dedicated is not None:
        paid, start_s = paid_s(router, replicas, simulation.end_s), cold_start_s(inputs, inputs.dedicated)
        logs = [replace(log, paid_s=seconds, start_s=start_s) for log, seconds in zip(logs, paid, strict=True)]
        adapter = inputs.requests.adapter.astype(np.int64)
        log_of_requests = replace(log_of_requests, adapter=adapter, rank=inputs.adapters.rank[adapter].astype(np.int64))
    return SimulationLog(
        scenario=scenario,
        requests=log_of_requests,
        replicas=tuple(logs),
        end_s=simulation.end_s,
        extrapolated_s=extrapolated_seconds(replicas),
        calibration=calibration_record(inputs),
        notes=inputs.requests.notes,
        initial_gpu=(*inputs.initial.gpu, *pinned),
        initial_host=(*inputs.initial.host, *pinned),
        events=sum(r.log.count for r in replicas),
        dedicated=inputs.dedicated,
    )
