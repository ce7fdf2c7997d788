"""Mooncake traces (github.com/kvcache-ai/Mooncake, FAST25-release): one JSON object a line, stamps in milliseconds.

hash_ids name the prompt's blocks of 512 tokens, the last one possibly partial: equal ids are equal content up to there.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simlora.errors import ConfigError
from simlora.scenario.base import brief
from simlora.workload.traces.columns import FAILED, labels_of
from simlora.workload.traces.json_values import field as require
from simlora.workload.traces.json_values import label, loads, time, tokens
from simlora.workload.traces.table import SECONDS_PER_UNIT, TraceFormat, TraceOptions, TraceTable

BLOCK_TOKENS = 512


@dataclass
class _Columns:
    stamp: list[float] = field(default_factory=list)
    prompt: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    hash_ids: list[tuple[int, ...] | None] = field(default_factory=list)
    adapter: list[str] = field(default_factory=list)
    line: list[int] = field(default_factory=list)


def parse(text: str, source: str, options: TraceOptions) -> TraceTable:
    """Trace from a file's text. Rows may lack hash_ids, but then all of them must."""
    columns = _Columns()
    minimum = 0 if options.failures == "drop" else 1
    for number, line in enumerate(io.StringIO(text), start=1):
        if line.strip():
            _append(columns, line, f"{source}:{number}", minimum, options.adapter_column)
            columns.line.append(number)
    output = np.array(columns.output, dtype=np.int32)
    trace = TraceTable(
        source=source,
        format="mooncake",
        arrival_s=np.array(columns.stamp) * SECONDS_PER_UNIT[options.unit or "ms"],
        prompt_tokens=np.array(columns.prompt, dtype=np.int32),
        output_tokens=output,
        row=np.arange(len(output), dtype=np.int64),
        line_of=columns.line.__getitem__,
        adapter=labels_of(columns.adapter) if options.adapter_column else None,
        prefix=_prefix(columns, source),
        prefix_block_tokens=BLOCK_TOKENS,
    )
    return trace.drop(output == 0, FAILED)


def _append(columns: _Columns, line: str, where: str, minimum_output: int, adapter_key: str | None) -> None:
    record = loads(line, where)
    if not isinstance(record, dict):
        raise ConfigError(
            where, "row", brief(line.strip()), "a JSON object with timestamp, input_length, output_length"
        )
    columns.stamp.append(time(require(record, "timestamp", where), "timestamp", where))
    prompt = tokens(require(record, "input_length", where), "input_length", where, 1)
    columns.prompt.append(prompt)
    columns.output.append(tokens(require(record, "output_length", where), "output_length", where, minimum_output))
    columns.hash_ids.append(_hash_ids(record["hash_ids"], prompt, where) if "hash_ids" in record else None)
    if adapter_key:
        columns.adapter.append(label(require(record, adapter_key, where), adapter_key, where))


def _hash_ids(value: Any, prompt_tokens: int, where: str) -> tuple[int, ...]:
    # type() and not isinstance(): true is an int too.
    if not isinstance(value, list) or any(type(item) is not int or item < 0 for item in value):
        raise ConfigError(where, "hash_ids", brief(value), "a list of whole numbers of at least 0")
    blocks = -(-prompt_tokens // BLOCK_TOKENS)
    if len(value) != blocks:
        allowed = f"{blocks} ids, one per {BLOCK_TOKENS} of the {prompt_tokens} prompt tokens, rounded up"
        raise ConfigError(where, "hash_ids", f"{len(value)} ids", allowed)
    return tuple(value)


def _prefix(columns: _Columns, source: str) -> tuple[tuple[int, ...], ...] | None:
    given = [ids for ids in columns.hash_ids if ids is not None]
    if not given:
        return None
    if len(given) < len(columns.hash_ids):
        line = columns.line[columns.hash_ids.index(None)]
        raise ConfigError(f"{source}:{line}", "hash_ids", None, "this key is missing, though other rows have it")
    return tuple(given)


FORMAT = TraceFormat("mooncake", parse, detect=lambda head: "input_length" in head.first_keys)
