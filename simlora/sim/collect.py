"""Turns what replicas and requests recorded into the columns of sim/log.py."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from simlora.engines.request import Request
from simlora.sim.log import (
    RUN_COLUMNS,
    STATUS_COMPLETED,
    STATUS_REJECTED,
    STATUS_UNFINISHED,
    Floats,
    ReplicaLog,
    RequestLog,
)
from simlora.sim.pipeline import PipelineReplica
from simlora.sim.replica import Replica


def request_log(requests: Sequence[Request], end_s: float) -> RequestLog:
    """One entry per request; a token that reaches its client after end_s did not come out."""
    n = len(requests)
    ints = dict(
        zip(_INTS, np.array(list(map(attrgetter(*_INTS), requests)), dtype=np.int64).reshape(n, -1).T, strict=True)
    )
    floats = dict(zip(_FLOATS, np.array(list(map(attrgetter(*_FLOATS), requests))).reshape(n, -1).T, strict=True))
    for token, run in (("first_token_s", "first_run"), ("last_token_s", "last_run")):
        floats[token] = np.where(floats[token] > end_s, np.nan, floats[token])
        ints[run] = np.where(np.isnan(floats[token]), -1, ints[run])
    rejected = np.array([r.rejected for r in requests], dtype=bool)
    unfinished = np.where(np.isnan(floats["last_token_s"]), STATUS_UNFINISHED, STATUS_COMPLETED)
    status = np.where(rejected, STATUS_REJECTED, unfinished).astype(np.int64)
    interrupted = {r.index: r.interrupted for r in requests if r.interrupted}
    columns: dict[str, Any] = {**ints, **floats}
    return RequestLog(**columns, status=status, interrupted_gaps=interrupted)


_INTS = (
    "adapter", "rank", "prompt_tokens", "output_tokens", "replica", "preemptions", "recomputed_tokens", "cached_tokens",
    "load_tier", "first_run", "last_run",
)  # fmt: skip
_FLOATS = ("arrival_s", "routed_s", "admitted_s", "first_token_s", "last_token_s", "load_s")


def run_columns(replica: Replica) -> dict[str, Floats]:
    """RUN_COLUMNS of one replica, one value per run."""
    rows = np.frombuffer(replica.runs, dtype=np.float64).reshape(replica.num_runs, len(RUN_COLUMNS))
    return {name: np.ascontiguousarray(rows[:, i]) for i, name in enumerate(RUN_COLUMNS)}


def _columns(items: Sequence[Any], names: tuple[str, ...], dtype: Any = np.float64) -> dict[str, Floats]:
    """One array per attribute name."""
    if not items:
        return {name: np.zeros(0, dtype) for name in names}
    columns = zip(*map(attrgetter(*names), items), strict=True)
    return {name: np.array(column, dtype) for name, column in zip(names, columns, strict=True)}


def extrapolated_seconds(replicas: Sequence[Replica]) -> dict[str, float]:
    """Latency term -> simulated seconds priced outside its measured range, over all replicas."""
    totals: dict[str, float] = {}
    for replica in replicas:
        for term, seconds in replica.extrapolated_s.items():
            totals[term] = totals.get(term, 0.0) + seconds
    return dict(sorted(totals.items()))


def replica_log(replica: Replica, gpus: int, load_bytes: int, start_s: float) -> ReplicaLog:
    """Counters of one replica. load_bytes: host-to-device bytes of all its loads; start_s: engine start-up time."""
    engine = replica.engine
    capacity, counters = engine.capacity, engine.counters()
    gpu, host, disk, remote = counters.tiers
    return ReplicaLog(
        runs=run_columns(replica),
        async_scheduling=engine.asynchronous,
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
        pipeline=replica.pipeline_log() if isinstance(replica, PipelineReplica) else None,
        loads=sum(counters.loads_by_rank.values()),
    )
