"""What the simulated serving costs.

GPU time is paid from engine start-up to the end of the simulation, idle or not, unless deployments may sleep.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simlora.results.latency import Measured
from simlora.sim.log import ReplicaLog

HOURS_PER_MONTH = 730
"""365 * 24 / 12."""


def usd_per_month(cost: dict[str, Any]) -> float | None:
    """Dollars a month of a cost block; None without a price."""
    hourly = cost["usd_per_hour"]
    return None if hourly is None else float(hourly) * HOURS_PER_MONTH


def up_s(measured: Measured, replica: ReplicaLog) -> float:
    """Seconds for which the replica's GPUs are paid: start-up, then the simulated time, unless it slept meanwhile."""
    return replica.start_s + measured.log.end_s if replica.paid_s is None else replica.paid_s


def _paid_fraction(measured: Measured, replica: ReplicaLog) -> float:
    """Share of the time in which the replica has its GPUs; 1 unless it may sleep."""
    if replica.paid_s is None or measured.log.end_s <= 0:
        return 1.0
    return replica.paid_s / (replica.start_s + measured.log.end_s)


def gpu_hour_usd(scenario: Any) -> float | None:
    """Price of one GPU-hour: the scenario's, else the list price of its GPU; None when neither is known."""
    price = getattr(getattr(scenario, "cost", None), "gpu_hour_usd", None)
    if price is None:
        price = getattr(getattr(scenario, "gpu_spec", None), "price_hour_usd", None)
    return None if price is None else float(price)


def cost_block(measured: Measured) -> dict[str, Any]:
    """{gpus, gpu_hours, usd, usd_per_1m_tokens, usd_per_1m_output_tokens, gpus_mean, usd_per_hour}.

    gpus counts all deployments, gpus_mean what was paid for at a time, as usd_per_hour does; tokens are those of
    completed requests.
    """
    requests, done = measured.log.requests, measured.completed
    gpu_hours = sum(up_s(measured, replica) * replica.gpus for replica in measured.log.replicas) / 3600
    price = gpu_hour_usd(measured.log.scenario)
    usd = None if price is None else gpu_hours * price
    output = int(np.sum(requests.output_tokens[done]))
    mean = sum(replica.gpus * _paid_fraction(measured, replica) for replica in measured.log.replicas)
    return {
        "gpus": sum(replica.gpus for replica in measured.log.replicas),
        "gpu_hours": gpu_hours,
        "usd": usd,
        "usd_per_1m_tokens": _per_million(usd, output + int(np.sum(requests.prompt_tokens[done]))),
        "usd_per_1m_output_tokens": _per_million(usd, output),
        "gpus_mean": mean,
        "usd_per_hour": None if price is None else mean * price,
    }


def _per_million(usd: float | None, tokens: int) -> float | None:
    return None if usd is None or not tokens else usd / tokens * 1e6
