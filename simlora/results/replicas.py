"""What replicas held: adapters (hits, loads, ranks and padding, demand for slots), KV blocks, and one row for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from simlora.engines.registry import engine_spec
from simlora.memory.ledger import NO_LIMIT
from simlora.results.gpus import up_s
from simlora.results.measured import Measured
from simlora.results.metrics import rate
from simlora.results.summary_metric import HIGHER, LOWER, NEUTRAL, Metric
from simlora.results.timeline import WAITS, Timeline
from simlora.scenario.lora_modules import adapter_bytes
from simlora.sim.log import ReplicaLog

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def misses(replica: ReplicaLog) -> int:
    """Admissions whose adapter was not on the GPU, by any tier."""
    return replica.host_hits + replica.disk_loads + replica.remote_loads


def loads(replica: ReplicaLog) -> int:
    """Adapters brought to the GPU, from any tier, for an admission or ahead of one."""
    return misses(replica) if replica.loads is None else replica.loads


def gpu_hit_rate(*replicas: ReplicaLog) -> float | None:
    """Share of admissions whose adapter was already on the GPU; None when there was no admission with an adapter."""
    hits = sum(replica.gpu_hits for replica in replicas)
    return rate(hits, hits + sum(map(misses, replicas)))


def _link_busy_fraction(measured: Measured) -> float | None:
    replicas = measured.log.replicas
    link = getattr(getattr(measured.log.scenario, "gpu_spec", None), "host_link_bytes_per_s", None)
    capacity = link and link * sum(replica.gpus for replica in replicas) * measured.log.end_s
    return rate(sum(replica.load_bytes for replica in replicas), capacity)


def _share_by_rank(measured: Measured) -> dict[str, float]:
    rank = measured.log.requests.rank
    ranks, counts = np.unique(rank, return_counts=True)
    return {str(one): int(count) / len(rank) for one, count in zip(ranks, counts, strict=True)}


def _compute_waste(measured: Measured) -> float | None:
    engine = measured.log.scenario.engine
    if not engine_spec(engine.kind).pads_ranks(engine):
        return 0.0
    wasted = total = 0.0
    for replica in measured.log.replicas:
        lora_s = replica.runs["lora_s"] * replica.runs["steps"]
        wasted += float(np.sum(lora_s * replica.runs["waste_rank_fraction"]))
        total += float(np.sum(lora_s))
    return rate(wasted, total)


def _memory_waste(measured: Measured) -> int | None:
    """Taking an adapter in a slot to have the mean rank of the requests with adapters; unsharded."""
    scenario = measured.log.scenario
    if not getattr(scenario.engine, "enable_lora", True):
        return 0
    model, modules = getattr(scenario, "model_spec", None), getattr(scenario, "slot_modules", None)
    rank = measured.log.requests.rank[measured.log.requests.adapter > 0]
    if model is None or modules is None or not len(rank):
        return None
    slots = sum(replica.slots for replica in measured.log.replicas)
    unused_rank = engine_spec(scenario.engine.kind).slot_rank(scenario) - float(rank.mean())
    return round(slots * unused_rank * adapter_bytes(model, 1, modules)) if unused_rank > 0 else 0


def active_adapters(measured: Measured) -> dict[str, Any]:
    """{mean, max, over_slots_fraction}: distinct adapters with a request in the system at one time, per replica.

    over_slots_fraction: share of the simulated time in which they outnumber the slots of their replica, so that
    somebody must wait; 0 for engines that bound the bytes of adapters and not their number. mean and
    over_slots_fraction are averages over the replicas, max is the largest of any.
    """
    requests, end_s = measured.log.requests, measured.log.end_s
    counted = bool(getattr(measured.log.scenario.engine, "enable_lora", True))
    means, overs, largest = [], [], 0
    for index, replica in enumerate(measured.log.replicas):
        own = (requests.replica == index) & (requests.adapter > 0) & ~measured.rejected
        begin, end = requests.routed_s[own], requests.last_token_s[own]
        begin, end = busy_intervals(requests.adapter[own], begin, np.where(np.isnan(end), end_s, end))
        width, level = _levels(begin, end)
        means.append(float(np.dot(width, level)) / end_s if end_s else 0.0)
        over = level > replica.slots if counted else np.zeros(len(level), dtype=np.bool_)
        overs.append(float(width[over].sum()) / end_s if end_s else 0.0)
        largest = max(largest, int(level.max(initial=0)))
    count = len(means)
    return {
        "mean": sum(means) / count if count else None,
        "max": largest,
        "over_slots_fraction": sum(overs) / count if count else None,
    }


def busy_intervals(adapter: Ints, begin_s: Floats, end_s: Floats) -> tuple[Floats, Floats]:
    """Union of the intervals of each adapter: (begins, ends) of the periods in which it has a request.

    adapter, begin_s, end_s: [num_intervals], in any order. The result is ordered by adapter, then by time.
    """
    order = np.lexsort((begin_s, adapter))
    adapter, begin_s, end_s = adapter[order], begin_s[order], end_s[order]
    if not len(adapter):
        return begin_s, end_s
    # Shift every adapter's times beyond the previous one's, so that one running maximum serves all.
    span = float(end_s.max() - begin_s.min()) + 1.0
    shift = (np.cumsum(np.diff(adapter, prepend=adapter[0]) != 0)) * span
    reach = np.maximum.accumulate(end_s + shift)
    new = np.ones(len(adapter), dtype=bool)
    new[1:] = (begin_s + shift)[1:] > reach[:-1]
    last = np.append(np.flatnonzero(new)[1:] - 1, len(adapter) - 1)
    return begin_s[new], (reach - shift)[last]


def _levels(begin_s: Floats, end_s: Floats) -> tuple[Floats, Ints]:
    """(width, level): between consecutive instants, how many of the intervals are open."""
    times = np.concatenate((begin_s, end_s))
    order = np.argsort(times, kind="stable")
    change = np.repeat(np.array([1, -1]), len(begin_s))[order]
    return np.diff(times[order]), np.cumsum(change)[:-1]


def _kv_usage_mean(measured: Measured) -> float | None:
    blocks = sum(replica.kv_blocks for replica in measured.log.replicas)
    means = [(kv_usage_mean(t, measured.log.end_s), t.replica.kv_blocks) for t in measured.timelines]
    weighted = [mean * size for mean, size in means if mean is not None]
    return sum(weighted) / blocks if weighted else None


def _kv_usage_max(measured: Measured) -> float | None:
    return max((usage for t in measured.timelines if (usage := kv_usage_max(t)) is not None), default=None)


def kv_usage_mean(timeline: Timeline, end_s: float) -> float | None:
    """Time mean of the used share of the replica's KV blocks, 0 while idle; None without blocks or time."""
    used = timeline.mean("kv_used_blocks", end_s)
    return None if used is None or not timeline.replica.kv_blocks else used / timeline.replica.kv_blocks


def kv_usage_max(timeline: Timeline) -> float | None:
    """Largest used share of the replica's KV blocks; None without blocks or runs."""
    used = timeline.replica.runs["kv_used_blocks"]
    if not len(used) or not timeline.replica.kv_blocks:
        return None
    return float(np.max(used)) / timeline.replica.kv_blocks


def replica_rows(measured: Measured) -> list[dict[str, Any]]:
    """Counts of each replica, and time means over the simulated time (idle time counts as 0). slots is None where only
    the bytes of adapters are bounded."""
    return [_row(measured, index) for index in range(len(measured.log.replicas))]


def _row(measured: Measured, index: int) -> dict[str, Any]:
    log, timeline = measured.log, measured.timelines[index]
    replica, end_s = timeline.replica, log.end_s
    routed = log.requests.replica == index
    done = routed & measured.completed
    waiting = sum((replica.runs[name] for name in WAITS), start=np.zeros_like(timeline.start_s))
    return {
        "replica": index,
        "requests": int(np.count_nonzero(routed)),
        "completed": int(np.count_nonzero(done)),
        "output_tokens": int(np.sum(log.requests.output_tokens[done])),
        "gpus": replica.gpus,
        "start_s": replica.start_s,
        "up_s": up_s(measured, replica),
        "steps": int(np.sum(replica.runs["steps"])),
        "busy_fraction": rate(float(np.sum(timeline.gpu_s)), end_s),
        "running_mean": timeline.mean("running", end_s),
        "waiting_mean": timeline.mean(waiting, end_s),
        "kv_blocks": replica.kv_blocks,
        "kv_usage_mean": kv_usage_mean(timeline, end_s),
        "kv_usage_max": kv_usage_max(timeline),
        "preemptions": replica.preemptions,
        "slots": replica.slots if replica.slots < NO_LIMIT else None,
        "gpu_hit_rate": gpu_hit_rate(replica),
        "loads": loads(replica),
        "load_bytes": replica.load_bytes,
        "evictions": replica.evictions,
    }


def _total(column: Callable[[ReplicaLog], int]) -> Callable[[Measured], int]:
    """Sum of a counter over the replicas."""
    return lambda measured: sum(map(column, measured.log.replicas))


ADAPTERS = (
    Metric(
        "adapters.distinct",
        "count",
        lambda m: len(np.unique(m.log.requests.adapter[m.log.requests.adapter > 0])),
        "adapters that were asked for",
    ),
    Metric(
        "adapters.gpu_hit_rate",
        "fraction",
        lambda m: gpu_hit_rate(*m.log.replicas),
        "admissions (base requests left out) whose adapter was on the GPU",
        "slot hits",
        HIGHER,
    ),
    Metric(
        "adapters.host_hit_rate",
        "fraction",
        lambda m: rate(_total(lambda replica: replica.host_hits)(m), _total(misses)(m)),
        "of the other admissions, those whose adapter was in host memory",
    ),
    Metric("adapters.loads", "count", _total(loads), "those begun ahead of an admission, too", "loads", LOWER),
    Metric("adapters.load_bytes", "bytes", _total(lambda replica: replica.load_bytes), "of all loads"),
    Metric(
        "adapters.evictions",
        "count",
        _total(lambda replica: replica.evictions),
        "adapters thrown out of the GPU",
        "evictions",
        LOWER,
    ),
    Metric(
        "adapters.churn_per_s",
        "1/s",
        lambda m: rate(_total(lambda replica: replica.evictions)(m), m.log.end_s),
        "evictions per simulated second",
    ),
    Metric("transfers.h2d_bytes", "bytes", _total(lambda replica: replica.load_bytes), "host to device"),
    Metric(
        "transfers.h2d_busy_fraction",
        "fraction",
        _link_busy_fraction,
        "bytes over what the GPUs' host links could carry in the simulated time at their datasheet rate: a floor",
    ),
    Metric(
        "transfers.stall_s",
        "s",
        lambda m: sum(float(np.sum(timeline.load_s)) for timeline in m.timelines),
        "seconds that loads added to steps, over all replicas; every request in such a step waits for it",
        "steps stalled",
        LOWER,
    ),
    Metric("ranks.share_by_rank", "fraction", _share_by_rank, "offered requests per rank; 0: base model"),
    Metric(
        "ranks.padded_compute_waste_fraction",
        "fraction",
        _compute_waste,
        "time of LoRA kernels spent on rank padding; 0 where kernels do not pad",
    ),
    Metric(
        "ranks.padded_memory_waste_bytes",
        "bytes",
        _memory_waste,
        "bytes of all slots beyond what their adapters need at their own rank",
        "slot padding",
        listed="Memory and GPU",
    ),
)
MEMORY = (
    Metric(
        "memory.kv_blocks",
        "count",
        _total(lambda replica: replica.kv_blocks),
        "usable KV blocks of all replicas; rows of one token in engines without blocks",
    ),
    Metric(
        "memory.kv_usage_mean",
        "fraction",
        _kv_usage_mean,
        "over the simulated time, idle time counted as empty, each replica weighted by its blocks",
        "KV use mean",
        NEUTRAL,
    ),
    Metric("memory.kv_usage_max", "fraction", _kv_usage_max, "of the fullest replica"),
    Metric(
        "memory.preemptions",
        "count",
        _total(lambda replica: replica.preemptions),
        "for lack of KV blocks",
        "preemptions",
        LOWER,
    ),
)
ROWS = (
    Metric("replicas", "", replica_rows, "counts and time means of each replica"),
    Metric("active_adapters", "", active_adapters, "distinct adapters with a request in the system at one time"),
)
