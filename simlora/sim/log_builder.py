"""Turns what replicas and requests recorded into the columns of sim/log.py."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from simlora.engines.request import Requests
from simlora.engines.request_columns import RequestColumns
from simlora.engines.run_log import ROW, RUN_COLUMNS, RunLog
from simlora.sim.log import (
    STATUS_COMPLETED,
    STATUS_REJECTED,
    STATUS_UNFINISHED,
    Floats,
    PipelineLog,
    ReplicaLog,
    RequestLog,
)
from simlora.sim.simulation import Replica

_INTS = (
    "adapter", "rank", "prompt_tokens", "output_tokens", "replica", "preemptions", "recomputed_tokens", "cached_tokens",
    "load_tier", "first_run", "last_run",
)  # fmt: skip
_FLOATS = ("arrival_s", "routed_s", "admitted_s", "first_token_s", "last_token_s", "load_s")


def request_log(requests: RequestColumns | Requests, end_s: float) -> RequestLog:
    """One entry per request; a token that reaches its client after end_s did not come out."""
    if isinstance(requests, RequestColumns):
        columns: dict[str, Any] = {name: np.array(getattr(requests, name), dtype=np.int64) for name in _INTS}
        columns |= {name: np.array(getattr(requests, name), dtype=np.float64) for name in _FLOATS}
        rejected, interrupted = np.array(requests.rejected, dtype=bool), dict(requests.interrupted)
    else:
        n = len(requests)
        ints = np.array(list(map(attrgetter(*_INTS), requests)), dtype=np.int64).reshape(n, -1).T
        floats = np.array(list(map(attrgetter(*_FLOATS), requests))).reshape(n, -1).T
        columns = {**dict(zip(_INTS, ints, strict=True)), **dict(zip(_FLOATS, floats, strict=True))}
        rejected = np.array([r.rejected for r in requests], dtype=bool)
        interrupted = {r.index: r.interrupted for r in requests if r.interrupted}
    for token, run in (("first_token_s", "first_run"), ("last_token_s", "last_run")):
        columns[token] = np.where(columns[token] > end_s, np.nan, columns[token])
        columns[run] = np.where(np.isnan(columns[token]), -1, columns[run])
    unfinished = np.where(np.isnan(columns["last_token_s"]), STATUS_UNFINISHED, STATUS_COMPLETED)
    status = np.where(rejected, STATUS_REJECTED, unfinished).astype(np.int64)
    return RequestLog(**columns, status=status, interrupted_gaps=interrupted)


def run_columns(log: RunLog) -> dict[str, Floats]:
    """RUN_COLUMNS, one value per run that is over."""
    rows = np.frombuffer(log.values, dtype=np.float64).reshape(log.count, ROW)
    return {name: np.ascontiguousarray(rows[:, i]) for i, name in enumerate(RUN_COLUMNS)}


def extrapolated_seconds(replicas: Sequence[Replica]) -> dict[str, float]:
    """Latency term -> simulated seconds priced outside its measured range, over all replicas."""
    totals: dict[str, float] = {}
    for replica in replicas:
        for term, seconds in replica.log.extrapolated_s().items():
            totals[term] = totals.get(term, 0.0) + seconds
    return dict(sorted(totals.items()))


def replica_log(replica: Replica, async_scheduling: bool, gpus: int, load_bytes: int, start_s: float) -> ReplicaLog:
    """Rows and counters of one replica. load_bytes: host-to-device bytes of all its loads; start_s: engine start-up
    time."""
    engine = replica.engine
    capacity, counters = engine.capacity, engine.counters()
    gpu, host, disk, remote = counters.tiers
    return ReplicaLog(
        runs=run_columns(replica.log),
        async_scheduling=async_scheduling,
        gpus=gpus,
        kv_blocks=capacity.kv_blocks,
        block_size=capacity.block_size,
        slots=capacity.slots,
        gpu_hits=gpu,
        host_hits=host,
        disk_loads=disk,
        remote_loads=remote,
        load_bytes=load_bytes,
        evictions=counters.evictions,
        preemptions=counters.preemptions,
        aborted=counters.aborted,
        start_s=start_s,
        pipeline=_pipeline_log(replica.log),
        loads=sum(counters.loads_by_rank.values()),
    )


def _pipeline_log(log: RunLog) -> PipelineLog | None:
    if not log.stages:
        return None
    return PipelineLog(log.stages, np.array(log.lane, np.int64), np.array(log.token_gap_s))
