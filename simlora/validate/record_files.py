"""The files of a recording: simlora-run/1, and errors.csv with every request that went wrong.

A request that was under way when the recording was cut did not go wrong: it is a row without times.
"""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simlora.results.files import Writer, text_writer
from simlora.results.requests_csv import RECORDED_COLUMNS
from simlora.scenario.root import Scenario
from simlora.validate.record_client import Attempt
from simlora.validate.record_load import Driven, Offers
from simlora.validate.record_server import COLUMNS as STEP_COLUMNS
from simlora.validate.record_server import ServerInfo
from simlora.workload.traces.simlora_run import RUN_FORMAT

REQUEST_COLUMNS = (*RECORDED_COLUMNS, "status", "model")
ERROR_COLUMNS = ("request", "arrival_s", "model", "kind", "status", "at_s", "tokens", "message")
_DECIMALS = 6


def recording_writers(
    offers: Offers, driven: Driven, steps: Sequence[tuple[float | int | None, ...]], description: dict[str, Any]
) -> dict[str, Writer]:
    """File name -> what writes it. steps.csv only where the server had metrics."""
    errors = [_error_row(offers, attempt) for attempt in driven.attempts if attempt.failure is not None]
    writers = {
        "run.json": text_writer(lambda: json.dumps(description, indent=1, ensure_ascii=False, allow_nan=False) + "\n"),
        "requests.csv": _table(REQUEST_COLUMNS, [_request_row(offers, attempt) for attempt in driven.attempts]),
        "errors.csv": _table(ERROR_COLUMNS, errors),
    }
    return writers | ({"steps.csv": _table(STEP_COLUMNS, steps)} if steps else {})


def run_description(
    scenario: Scenario,
    offers: Offers,
    driven: Driven,
    server: ServerInfo,
    residents: dict[str, Any] | None,
    notes: dict[str, Any],
) -> dict[str, Any]:
    """The mapping of run.json. The engine's flags are the scenario's; what the server says of itself goes before."""
    engine = scenario.engine
    caching = server.flag("enable_prefix_caching")
    return {
        "format": RUN_FORMAT,
        "gpu": _gpu(scenario),
        "server": engine.kind,
        "server_version": server.version or engine.version,
        "model": scenario.model_spec.name,
        "model_config": dataclasses.asdict(scenario.model_spec),
        "dtype": "bfloat16",
        "engine": engine.model_dump(mode="json"),
        "resolved": {
            "max_num_seqs": engine.max_num_seqs,
            "max_num_batched_tokens": engine.max_num_batched_tokens,
            "max_model_len": server.max_model_len or engine.max_model_len,
            "num_gpu_blocks": server.number("num_gpu_blocks") or engine.num_gpu_blocks_override,
            "block_size": server.number("block_size") or engine.block_size,
            "async_scheduling": engine.async_scheduling,
            "chunked_prefill": engine.enable_chunked_prefill,
            "max_cpu_loras": engine.max_cpu_loras if engine.enable_lora else None,
        },
        "adapter_target_modules": list(scenario.adapter_modules),
        "prefix_caching": engine.enable_prefix_caching if caching is None else caching,
        "endpoint": "http",
        "name": scenario.name,
        "kind": "trace",
        "seed": scenario.seed,
        "initial_adapters": residents,
        "workload": scenario.workload.model_dump(mode="json"),
        "cut_s": _rounded(driven.cut_s),
        "wall_s": _rounded(driven.end_s),
        "offered": len(driven.attempts),
        "completed": sum(attempt.done for attempt in driven.attempts),
        "notes": {"models": list(offers.models), **notes},
    }


def _gpu(scenario: Scenario) -> str | dict[str, Any]:
    """The catalogue's name, with the datasheet values that the scenario overrides."""
    given = scenario.gpu.model_dump(mode="json")
    name = scenario.gpu_spec.name
    return {**given, "name": name} if isinstance(given, dict) else name


def _request_row(offers: Offers, attempt: Attempt) -> list[Any]:
    """Lengths are those that the server counted, where it did."""
    requests, index, stream = offers.requests, attempt.index, attempt.stream
    adapter = int(requests.adapter[index])
    row: list[Any] = [
        _rounded(attempt.sent_s),
        adapter,
        int(offers.adapters.rank[adapter]),
        stream.prompt_tokens or int(requests.prompt_tokens[index]),
        stream.tokens if attempt.done else int(requests.output_tokens[index]),
    ]
    if not attempt.done:
        refused = attempt.failure is not None and attempt.failure.is_refusal
        return [*row, None, None, None, None, "rejected" if refused else "unfinished", offers.model(index)]
    since = np.array(stream.token_s) - attempt.sent_s
    gaps = np.diff(since) if len(since) > 1 else np.zeros(1)
    times = (since[0], since[-1], gaps.max(), np.median(gaps))
    return [*row, *(_rounded(float(time)) for time in times), "completed", offers.model(index)]


def _error_row(offers: Offers, attempt: Attempt) -> list[Any]:
    failure = attempt.failure
    assert failure is not None, "called for attempts that failed"
    return [
        attempt.index,
        _rounded(attempt.sent_s),
        offers.model(attempt.index),
        failure.kind,
        failure.status,
        _rounded(failure.at_s),
        attempt.stream.tokens,
        failure.message,
    ]


def _table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Writer:
    def write(path: Path) -> None:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows(rows)

    return write


def _rounded(time_s: float | None) -> float | None:
    return None if time_s is None else round(time_s, _DECIMALS)
