"""requests.csv: one row per offered request, in order of arrival.

The first nine columns are those of a recorded run (simlora-run/1), so a simulated run can be read like a measured one.
An empty cell means: it never happened. Times are seconds, written so that they read back exactly.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from simlora.results.measured import Measured
from simlora.results.token_gaps import token_gaps

RECORDED_COLUMNS = (
    "arrival_s",
    "adapter",
    "rank",
    "prompt_tokens",
    "output_tokens",
    "ttft_s",
    "e2e_s",
    "itl_max_s",
    "itl_p50_s",
)
COLUMNS = (
    *RECORDED_COLUMNS,
    "status",
    "replica",
    "routed_s",
    "admitted_s",
    "queue_s",
    "load_tier",
    "load_s",
    "preemptions",
    "recomputed_tokens",
    "cached_tokens",
)
STATUS_NAMES = ("completed", "rejected", "unfinished")
TIER_NAMES = ("slot", "host", "disk", "remote")


def write_requests(measured: Measured, path: Path) -> None:
    """Write the file."""
    columns = request_columns(measured)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def request_columns(measured: Measured) -> dict[str, list[Any]]:
    """Column -> one plain value per request, None where empty.

    ttft_s is given once the client has a first token, e2e_s only for completed requests. routed_s and admitted_s are
    instants, the other times durations.
    """
    requests = measured.log.requests
    itl_max, itl_p50 = token_gaps(measured)
    loaded = np.isnan(requests.admitted_s)
    values = (
        requests.arrival_s.tolist(),
        requests.adapter.tolist(),
        requests.rank.tolist(),
        requests.prompt_tokens.tolist(),
        requests.output_tokens.tolist(),
        _optional(measured.ttft_s),
        _optional(measured.e2e_s),
        _optional(itl_max),
        _optional(itl_p50),
        [STATUS_NAMES[status] for status in requests.status.tolist()],
        [replica if replica >= 0 else None for replica in requests.replica.tolist()],
        _optional(requests.routed_s),
        _optional(requests.admitted_s),
        _optional(measured.queue_s),
        [None if none else TIER_NAMES[tier] for tier, none in zip(requests.load_tier.tolist(), loaded, strict=True)],
        _optional(requests.load_s),
        requests.preemptions.tolist(),
        requests.recomputed_tokens.tolist(),
        requests.cached_tokens.tolist(),
    )
    columns = dict(zip(COLUMNS, values, strict=True))
    order = np.argsort(requests.arrival_s, kind="stable")
    if np.any(np.diff(order) != 1):
        columns = {name: [column[index] for index in order] for name, column in columns.items()}
    return columns


def _optional(values: npt.NDArray[np.float64]) -> list[float | None]:
    return [None if value != value else value for value in values.tolist()]
