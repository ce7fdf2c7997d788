"""Simulates one of the published runs and computes the client's metrics."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any

import numpy as np
from agullo_client import Client, requests_of
from agullo_rows import AgulloRow
from agullo_scrape import Stall, delivered, merged_tokens

from simlora.engines.inputs import Inputs
from simlora.errors import ConfigError
from simlora.scenario.load import scenario_from_dict
from simlora.scenario.root import Scenario
from simlora.sim.build import build_inputs, make_replicas, make_requests
from simlora.sim.clock import Clock
from simlora.sim.log import Floats, ReplicaLog, RequestLog
from simlora.sim.log_builder import replica_log, request_log
from simlora.sim.simulation import Simulation
from simlora.workload.adapter_table import AdapterTable

SHORT_CONTEXT = 4096
"""max_model_len where the ledger holds less than the model's own limit."""
MODULES = {"qwen2.5-7b": ("q_proj", "k_proj", "v_proj", "o_proj")}
"""What the adapters hold. Not published; a load of the Qwen adapters takes 3.0 ms, one of the Llama adapters 6.4 ms,
which fits attention only against all linear layers at the same time per module."""


@dataclass(frozen=True)
class Played:
    requests: RequestLog
    replica: ReplicaLog
    metrics: dict[str, float]
    stalls: list[Stall]
    """When the API server answered a scrape."""


def scenario_of(row: AgulloRow, calibration: str | None, max_model_len: int | None = None) -> Scenario:
    """The row as a scenario; arrivals and lengths come from agullo_client."""
    engine: dict[str, Any] = {
        "version": "0.8.5",
        "max_loras": row.max_loras,
        "max_cpu_loras": row.max_cpu_loras,
        "max_lora_rank": row.max_lora_rank,
        "max_num_seqs": row.max_num_seqs,
        "enable_prefix_caching": False,
    }
    if max_model_len is not None:
        engine["max_model_len"] = max_model_len
    rates = [row.rates_rps[index % len(row.rates_rps)] for index in range(row.count)]
    data = {
        "name": row.path[-150:],
        "model": row.model,
        "gpu": "h100-64gb",
        "calibration": calibration,
        "engine": engine,
        "adapters": {"count": row.count, "popularity": {"kind": "explicit", "rates_rps": rates}, "preload": True}
        | {"ranks": {rank: row.ranks.count(rank) / len(row.ranks) for rank in set(row.ranks)}}
        | {"target_modules": list(MODULES[row.model]) if row.model in MODULES else "all-linear"},
        "workload": {"duration_s": row.total_time_s, "end": "cut"},
        "storage": {"host_gib": 1e6},
    }
    return scenario_from_dict(data, source=row.path)


def adapters_of(row: AgulloRow) -> AdapterTable:
    rank = [0] + [row.ranks[index % len(row.ranks)] for index in range(row.count)]
    rates = np.array([0.0] + [row.rates_rps[index % len(row.rates_rps)] for index in range(row.count)])
    return AdapterTable(row.count, np.array(rank, dtype=np.int32), rates / rates.sum())


def inputs_of(row: AgulloRow, calibration: str | None) -> Inputs:
    """Everything a simulation is built from. A KV cache that the ledger finds too small for the model's longest
    request, though the server started, keeps its size with a shorter limit."""
    requests, adapters = requests_of(row), adapters_of(row)
    try:
        return build_inputs(scenario_of(row, calibration), adapters, requests)
    except ConfigError:
        return build_inputs(scenario_of(row, calibration, SHORT_CONTEXT), adapters, requests)


def play(row: AgulloRow, calibration: str | None = None) -> Played:
    """Simulate the row up to its total_time."""
    inputs = inputs_of(row, calibration)
    clock = Clock()
    requests = make_requests(inputs)
    replicas = make_replicas(inputs, requests, True)
    client = Client(replicas[0])
    gc.disable()
    try:
        Simulation(clock, replicas, client, requests, inputs.latency.frontend_in_s, cut_s=row.total_time_s).run()
    finally:
        gc.enable()
    log, replica = (
        request_log(requests, row.total_time_s),
        replica_log(replicas[0], inputs.scenario.engine.async_scheduling, 1, 0, 0.0),
    )
    stalls = client.scraper.stalls
    first_s, last_s = delivered(log.first_token_s, stalls), delivered(log.last_token_s, stalls)
    merged = merged_tokens(replica.runs, stalls)
    metrics = metrics_of(log.arrival_s, first_s, last_s, log.output_tokens, merged, row.total_time_s)
    return Played(log, replica, metrics, stalls)


def metrics_of(
    arrival_s: Floats, first_s: Floats, last_s: Floats, output_tokens: Any, merged: float, total_time_s: float
) -> dict[str, float]:
    """What the client reports, over the requests that finished: ITL is the mean over all gaps between chunks, of which
    `merged` tokens are none of their own; TPOT is the mean over requests."""
    done = last_s <= total_time_s
    if not done.any():
        return dict.fromkeys(("throughput_rps", "ttft_s", "itl_s", "tpot_s"), 0.0)
    first, last, gaps = first_s[done], last_s[done], output_tokens[done] - 1
    several = gaps > 0
    decoding = (last - first)[several]
    return {
        "throughput_rps": float(np.count_nonzero(done) / total_time_s),
        "ttft_s": float((first - arrival_s[done]).mean()),
        "itl_s": float(decoding.sum() / (gaps[several].sum() - merged)),
        "tpot_s": float((decoding / gaps[several]).mean()),
    }
