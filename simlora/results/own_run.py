"""A simulated run in the format of recorded ones (simlora-run/1), so that it is read and validated like them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import simlora
from simlora.results.measured import Measured, request_counts
from simlora.results.summary import to_plain
from simlora.results.token_gaps import token_gaps
from simlora.runs.run_file import SERVER
from simlora.runs.write import REQUEST_COLUMNS, describe_run, write_table

COLUMNS = (
    *REQUEST_COLUMNS,
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


def run_description(measured: Measured) -> dict[str, Any]:
    """The mapping of run.json.

    engine holds every setting of the simulated engine, its kind included. cut_s is null when every request ended. With
    one deployment per tenant, engine, adapters and cluster are as the user wrote them.
    """
    log = measured.log
    scenario = log.dedicated or log.scenario
    counts = request_counts(measured)
    first = log.replicas[0] if log.replicas else None
    resolved: dict[str, Any] = {"num_gpu_blocks": None}
    if first:
        blocks = first.kv_blocks + (scenario.engine.kind == "vllm")  # vLLM counts its null block
        resolved = {"num_gpu_blocks": blocks, "block_size": first.block_size}
    description = describe_run(
        scenario,
        SERVER,
        simlora.__version__,
        resolved,
        start_s=first.start_s if first else None,
        ignore_eos=True,
        host=None,
        calibration={key: log.calibration.get(key) for key in ("id", "sha256")},
        initial_adapters={
            "gpu": list(log.initial_gpu),
            "host": list(log.initial_host),
            "gpu_others": 0,
            "host_others": 0,
        },
        adapters=scenario.adapters.model_dump(mode="json"),
        cluster=scenario.cluster.model_dump(mode="json"),
        storage=scenario.storage.model_dump(mode="json"),
        cut_s=log.end_s if counts["unfinished"] else None,
        wall_s=log.end_s,
        offered=counts["offered"],
        completed=counts["completed"],
    )
    plain: dict[str, Any] = to_plain(description)
    return plain


def write_requests(measured: Measured, path: Path) -> None:
    """Write requests.csv: one row per offered request, in order of arrival.

    An empty cell means: it never happened. Times are seconds, written so that they read back exactly.
    """
    columns = request_columns(measured)
    write_table(path, tuple(columns), zip(*columns.values(), strict=True))


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
