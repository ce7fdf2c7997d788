"""Turns what replicas and requests recorded into the columns of sim/log.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from simlora.engines.request import Request
from simlora.sim.log import (
    RUN_COLUMNS,
    STATUS_COMPLETED,
    STATUS_REJECTED,
    STATUS_UNFINISHED,
    Floats,
    Ints,
    ReplicaLog,
    RequestLog,
)
from simlora.sim.replica import Replica


def request_log(requests: Sequence[Request], end_s: float) -> RequestLog:
    """One entry per request; a token that reaches its client after end_s did not come out."""
    n = len(requests)

    def ints(get: Callable[[Request], int]) -> Ints:
        return np.fromiter((get(r) for r in requests), np.int64, n)

    def floats(get: Callable[[Request], float]) -> Floats:
        return np.fromiter((get(r) for r in requests), np.float64, n)

    last = floats(lambda r: r.last_token_s)
    first = floats(lambda r: r.first_token_s)
    last[last > end_s] = np.nan
    first[first > end_s] = np.nan
    rejected = np.fromiter((r.rejected for r in requests), bool, n)
    status = np.where(rejected, STATUS_REJECTED, np.where(np.isnan(last), STATUS_UNFINISHED, STATUS_COMPLETED))
    first_run, last_run = ints(lambda r: r.first_run), ints(lambda r: r.last_run)
    first_run[np.isnan(first)] = -1
    last_run[np.isnan(last)] = -1
    return RequestLog(
        arrival_s=floats(lambda r: r.arrival_s),
        adapter=ints(lambda r: r.adapter),
        rank=ints(lambda r: r.rank),
        prompt_tokens=ints(lambda r: r.prompt_tokens),
        output_tokens=ints(lambda r: r.output_tokens),
        status=status.astype(np.int64),
        replica=ints(lambda r: r.replica),
        routed_s=floats(lambda r: r.routed_s),
        admitted_s=floats(lambda r: r.admitted_s),
        first_token_s=first,
        last_token_s=last,
        preemptions=ints(lambda r: r.preemptions),
        recomputed_tokens=ints(lambda r: r.recomputed_tokens),
        cached_tokens=ints(lambda r: r.cached_tokens),
        load_tier=ints(lambda r: r.load_tier),
        load_s=floats(lambda r: r.load_s),
        first_run=first_run,
        last_run=last_run,
        interrupted_gaps={r.index: r.interrupted for r in requests if r.interrupted},
    )


def run_columns(replica: Replica) -> dict[str, Floats]:
    """RUN_COLUMNS of one replica, one value per run."""
    rows = replica.runs
    if not rows:
        return {name: np.zeros(0) for name in RUN_COLUMNS}
    start_s, first_s, _, from_, to, epochs, plans, weight, running, waiting, kv_used, rank_tokens = zip(*rows, strict=True)
    begin = np.array(from_, dtype=np.float64)
    timing = {name: _of([e.timing for e in epochs], name) for name in _TIMING}
    plan = {name: np.array([0 if p is None else getattr(p, name) for p in plans], dtype=np.float64) for name in _PLAN}
    gap, slope = _of(epochs, "gap_s"), _of(epochs, "slope_s")
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


def _of(items: Sequence[Any], name: str) -> Floats:
    return np.array([getattr(item, name) for item in items], dtype=np.float64)


def extrapolated_seconds(replicas: Sequence[Replica]) -> dict[str, float]:
    """Latency term -> simulated seconds priced outside its measured range."""
    totals: dict[str, float] = {}
    for replica in replicas:
        for start_s, _, end_s, _, _, epoch, *_ in replica.runs:
            for term in epoch.timing.extrapolated:
                totals[term] = totals.get(term, 0.0) + end_s - start_s
    return dict(sorted(totals.items()))


def replica_log(replica: Replica, gpus: int, load_bytes: int, start_s: float) -> ReplicaLog:
    """Counters of one replica. load_bytes: host-to-device bytes of all its loads; start_s: engine start-up time."""
    engine = replica.engine
    gpu, host, disk, remote = engine.tier_counts
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
        evictions=engine.evictions,
        preemptions=engine.preemptions,
        start_s=start_s,
    )
