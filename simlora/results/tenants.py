"""Views by tenant. A tenant is an adapter (0: the base model). Shares are 0 to 1, times seconds."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from simlora.engines.registry import engine_spec
from simlora.results.measured import Measured, met_slo
from simlora.results.quantiles import group_quantiles
from simlora.results.summary_metric import HIGHER, Metric
from simlora.sim.log import SimulationLog

Floats = npt.NDArray[np.float64]

WORST = 5
"""Tenants listed in a summary."""


class Tenant(NamedTuple):
    """What one adapter's users saw; None where no request defines it."""

    adapter: int
    rank: int
    requests: int
    completed: int
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    tpot_mean_s: float | None
    attainment: float
    slowdown: float | None
    """Time in the system over time in service (all but queueing and own loads); None when nothing was served."""


def tenants(log: SimulationLog) -> list[Tenant]:
    """One row per adapter that was asked for, ordered by adapter."""
    return tenant_rows(Measured(log))


def tenant_rows(measured: Measured) -> list[Tenant]:
    """As `tenants`."""
    requests = measured.log.requests
    adapters, first, group = np.unique(requests.adapter, return_index=True, return_inverse=True)
    size = len(adapters)
    known = ~np.isnan(measured.ttft_s)
    p50, p99 = group_quantiles(group[known], measured.ttft_s[known], size, (0.5, 0.99))
    offered = np.bincount(group, minlength=size)
    share = service_shares(measured)
    slowdown = np.divide(1.0, share, out=np.full(size, np.nan), where=share > 0)
    columns = (
        adapters.tolist(),
        requests.rank[first].tolist(),
        offered.tolist(),
        np.bincount(group, measured.completed, minlength=size).astype(int).tolist(),
        _optional(p50),
        _optional(p99),
        _optional(_group_mean(group, measured.tpot_s, size)),
        (np.bincount(group, met_slo(measured), minlength=size) / offered).tolist(),
        _optional(slowdown),
    )
    return [Tenant(*row) for row in zip(*columns, strict=True)]


def service_shares(measured: Measured) -> Floats:
    """[num_tenants], by adapter: the share of its requests' time in the system in which they were served (0 to 1).

    Served: from admission on, less the request's own load where that comes after it; gaps that span a preemption count
    as served. Unfinished requests count until the end of the simulation. A tenant whose requests were all rejected has
    0.
    """
    requests, end_s = measured.log.requests, measured.log.end_s
    _, group = np.unique(requests.adapter, return_inverse=True)
    left = np.where(np.isnan(requests.last_token_s), end_s, requests.last_token_s)
    total = np.where(measured.rejected, 0.0, np.maximum(left - requests.arrival_s, 0.0))
    admitted = np.where(np.isnan(requests.admitted_s), left, requests.admitted_s)
    engine = measured.log.scenario.engine
    loading = 0.0 if engine_spec(engine.kind).loads_before_admission(engine) else np.nan_to_num(requests.load_s)
    served = np.clip(left - admitted - loading, 0.0, total)
    totals, serveds = np.bincount(group, total), np.bincount(group, served)
    share: Floats = np.divide(serveds, totals, out=np.zeros(len(totals)), where=totals > 0)
    return share


def jain_index(values: Floats) -> float | None:
    """(sum x)^2 / (n sum x^2); None when empty or all 0.

    1 when all tenants spend the same share of their time in service, 1 / n when one gets it all.
    Source: Jain, Chiu and Hawe, DEC-TR-301, 1984.
    """
    squares = float(np.sum(values**2))
    return float(np.sum(values)) ** 2 / (len(values) * squares) if squares > 0 else None


def worst(rows: list[Tenant], count: int = WORST) -> list[dict[str, Any]]:
    """The tenants served worst, as mappings: lowest attainment, then most requests, then highest p99 of TTFT."""
    order = sorted(rows, key=lambda row: (row.attainment, -row.requests, -(row.ttft_p99_s or 0.0), row.adapter))
    return [row._asdict() for row in order[:count]]


def _group_mean(group: npt.NDArray[np.intp], values: Floats, size: int) -> Floats:
    known = ~np.isnan(values)
    count = np.bincount(group[known], minlength=size)
    total = np.bincount(group[known], values[known], minlength=size)
    mean: Floats = np.divide(total, count, out=np.full(size, np.nan), where=count > 0)
    return mean


def _optional(values: Floats) -> list[float | None]:
    return [None if value != value else value for value in values.tolist()]


METRICS = (
    Metric(
        "tenants.count", "count", lambda m: len(m.once(tenant_rows)), "adapters that were asked for, or the base model"
    ),
    Metric(
        "tenants.jain_index",
        "count",
        lambda m: jain_index(service_shares(m)),
        "Jain's index of the tenants' shares of time in service",
        "Jain index",
        HIGHER,
    ),
    Metric("tenants.worst", "", lambda m: worst(m.once(tenant_rows)), f"the {WORST} tenants served worst"),
)
