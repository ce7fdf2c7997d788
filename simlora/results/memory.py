"""KV blocks: how many, how full, and the preemptions that a lack of them caused."""

from __future__ import annotations

from typing import Any

import numpy as np

from simlora.results.latency import Measured
from simlora.results.timeline import Timeline


def memory_block(measured: Measured) -> dict[str, Any]:
    """{kv_blocks, kv_usage_mean, kv_usage_max, preemptions} over all replicas.

    kv_blocks is the sum of their usable blocks, in the engine's own unit: rows of one token where it has no blocks. The
    mean is over the simulated time, idle time counted as empty, each replica weighted by its blocks.
    """
    blocks = sum(replica.kv_blocks for replica in measured.log.replicas)
    timelines, end_s = measured.timelines, measured.log.end_s
    means = [(kv_usage_mean(timeline, end_s), timeline.replica.kv_blocks) for timeline in timelines]
    weighted = [mean * size for mean, size in means if mean is not None]
    largest = [usage for timeline in timelines if (usage := kv_usage_max(timeline)) is not None]
    return {
        "kv_blocks": blocks,
        "kv_usage_mean": sum(weighted) / blocks if weighted else None,
        "kv_usage_max": max(largest) if largest else None,
        "preemptions": sum(replica.preemptions for replica in measured.log.replicas),
    }


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
