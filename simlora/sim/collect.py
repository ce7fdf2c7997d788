"""Turns what replicas and requests recorded into the columns of sim/log.py."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from simlora.engines.request import Request
from simlora.latency.step import StepPlan
from simlora.sim.log import (
    RUN_COLUMNS,
    STATUS_COMPLETED,
    STATUS_REJECTED,
    STATUS_UNFINISHED,
    Floats,
    ReplicaLog,
    RequestLog,
)
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
    rows = replica.runs
    if not rows:
        return {name: np.zeros(0) for name in RUN_COLUMNS}
    start_s, first_s, _, from_, to, epochs, plans, weight, running, waiting, kv_used, rank_tokens = zip(
        *rows, strict=True
    )
    begin = np.array(from_, dtype=np.float64)
    timing = _columns([epoch.timing for epoch in epochs], _TIMING)
    plan = _columns([_NOTHING_PLANNED if p is None else p for p in plans], _PLAN)
    epoch = _columns(epochs, ("gap_s", "slope_s"))
    gap, slope = epoch["gap_s"], epoch["slope_s"]
    decode_tokens = plan["decode_count"] * replica.engine.decodes.tokens_per_step
    slots, kv, seqs, tokens = np.array(waiting, dtype=np.float64).T
    padded = plan["lora_tokens"] * plan["max_rank"]
    own = np.array(rank_tokens, dtype=np.float64)
    starts = np.array(start_s)
    columns = {
        "start_s": starts,
        "first_gap_s": np.array(first_s) - starts,
        "first_weight": np.array(weight, dtype=np.float64),
        "gap_s": gap + slope * np.maximum(begin, 0.0),
        "slope_s": slope,
        "steps": np.array(to, dtype=np.float64) - begin,
        "decode_count": plan["decode_count"],
        "prefill_count": np.array([0 if p is None else len(p.prefills) for p in plans], dtype=np.float64),
        "prefill_tokens": plan["num_tokens"] - decode_tokens,
        "context_tokens": plan["decode_context_tokens"],
        "running": np.array(running, dtype=np.float64),
        "waiting_slots": slots,
        "waiting_kv": kv,
        "waiting_seqs": seqs,
        "waiting_tokens": tokens,
        "num_adapters": plan["num_adapters"],
        "kv_used_blocks": np.array(kv_used, dtype=np.float64),
        "host_s": timing["host_s"] + timing["sync_s"],
        "load_s": np.where(begin == 0, timing["load_s"], 0.0),
        "base_s": timing["base_s"],
        "attention_s": timing["attention_s"] + timing["slope_s"] * begin,
        "lora_s": timing["lora_s"],
        "collective_s": timing["collective_s"],
        "waste_rank_fraction": np.divide(padded - own, padded, out=np.zeros_like(padded), where=padded > 0),
    }
    return {name: columns[name] for name in RUN_COLUMNS}


_TIMING = ("host_s", "sync_s", "load_s", "base_s", "attention_s", "slope_s", "lora_s", "collective_s")
_PLAN = ("decode_count", "decode_context_tokens", "num_tokens", "num_adapters", "lora_tokens", "max_rank")


_NOTHING_PLANNED = StepPlan((), 0, 0, 0, 0, 0, 0, 0, False, (), 1)


def _columns(items: Sequence[Any], names: tuple[str, ...], dtype: Any = np.float64) -> dict[str, Floats]:
    """One array per attribute name."""
    if not items:
        return {name: np.zeros(0, dtype) for name in names}
    columns = zip(*map(attrgetter(*names), items), strict=True)
    return {name: np.array(column, dtype) for name, column in zip(names, columns, strict=True)}


def extrapolated_seconds(replicas: Sequence[Replica]) -> dict[str, float]:
    """Latency term -> simulated seconds priced outside its measured range."""
    totals: dict[str, float] = {}
    by_terms: dict[tuple[str, ...], float] = {}
    for replica in replicas:
        for row in replica.runs:
            terms = row[5].timing.extrapolated
            if terms:
                by_terms[terms] = by_terms.get(terms, 0.0) + row[2] - row[0]
    for terms, seconds in by_terms.items():
        for term in terms:
            totals[term] = totals.get(term, 0.0) + seconds
    return dict(sorted(totals.items()))


def replica_log(replica: Replica, gpus: int, load_bytes: int, start_s: float) -> ReplicaLog:
    """Counters of one replica. load_bytes: host-to-device bytes of all its loads; start_s: engine start-up time."""
    engine = replica.engine
    gpu, host, disk, remote = engine.slots.tier_counts
    return ReplicaLog(
        runs=run_columns(replica),
        async_scheduling=engine.limits.async_scheduling,
        gpus=gpus,
        kv_blocks=engine.limits.kv_blocks,
        block_size=engine.limits.block_size,
        slots=engine.limits.max_loras,
        gpu_hits=gpu,
        host_hits=host,
        disk_loads=disk,
        remote_loads=remote,
        load_bytes=load_bytes,
        evictions=engine.slots.evictions,
        preemptions=engine.preemptions,
        start_s=start_s,
    )
