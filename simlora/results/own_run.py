"""A simulated run in the format of recorded ones (simlora-run/1), so that it is read and validated like them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import simlora
from simlora.results.csv_columns import write_columns
from simlora.results.measured import Measured, request_counts
from simlora.results.summary import to_plain
from simlora.results.token_gaps import token_gaps
from simlora.runs import SERVER
from simlora.runs.write import REQUEST_COLUMNS, describe_run

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
    """Write requests.csv: one row per offered request, in order of arrival. An empty cell means: it never happened."""
    columns = request_columns(measured)
    order = np.argsort(columns["arrival_s"], kind="stable")
    if np.any(np.diff(order) != 1):
        columns = {name: column[order] for name, column in columns.items()}
    write_columns(path, columns)


def request_columns(measured: Measured) -> dict[str, npt.NDArray[Any]]:
    """Column -> one value per request: numbers, NaN where empty, or text.

    ttft_s is given once the client has a first token, e2e_s only for completed requests. routed_s and admitted_s are
    instants, the other times durations.
    """
    requests = measured.log.requests
    itl_max, itl_p50 = token_gaps(measured)
    replica_names = _words("", *range(len(measured.log.replicas)))
    values = (
        requests.arrival_s,
        requests.adapter,
        requests.rank,
        requests.prompt_tokens,
        requests.output_tokens,
        measured.ttft_s,
        measured.e2e_s,
        itl_max,
        itl_p50,
        _words(*STATUS_NAMES)[requests.status],
        replica_names[requests.replica + 1],
        requests.routed_s,
        requests.admitted_s,
        measured.queue_s,
        np.where(np.isnan(requests.admitted_s), "", _words(*TIER_NAMES)[requests.load_tier]),
        requests.load_s,
        requests.preemptions,
        requests.recomputed_tokens,
        requests.cached_tokens,
    )
    return dict(zip(COLUMNS, values, strict=True))


def _words(*words: object) -> npt.NDArray[np.object_]:
    return np.array([str(word) for word in words], dtype=np.object_)
