"""One entry per replica of a summary's `replicas` list."""

from __future__ import annotations

from typing import Any

import numpy as np

from simlora.results.adapters import gpu_hit_rate, loads
from simlora.results.cost import up_s
from simlora.results.engine_terms import slot_limit
from simlora.results.latency import Measured
from simlora.results.memory import kv_usage_max, kv_usage_mean
from simlora.results.metrics import rate
from simlora.results.timeline import WAITS


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
        "slots": slot_limit(replica.slots),
        "gpu_hit_rate": gpu_hit_rate(replica),
        "loads": loads(replica),
        "load_bytes": replica.load_bytes,
        "evictions": replica.evictions,
    }
