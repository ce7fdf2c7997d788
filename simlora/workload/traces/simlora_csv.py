"""simlora's own CSV, read and written: arrival_s, adapter, prompt_tokens, output_tokens,
and optionally a prefix, a tenant, ranks.

- adapter: 0 or empty = base model; numbers are adapter ids, anything else is a name.
- prefix_id, prefix_tokens: the prompt's first prefix_tokens tokens are those of every request with this prefix_id.
- hash_ids, hash_block_tokens: instead, ids of the prompt's leading blocks, separated by spaces (as Mooncake has them).
- tenant: groups requests for the mapping rule `hash`. rank: of the request's adapter, in recorded runs.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from simlora.errors import ConfigError
from simlora.workload.request_table import RequestTable, group_ids
from simlora.workload.traces.columns import CsvTable, Layout, open_columns, table
from simlora.workload.traces.table import (
    PREFIX_BLOCK_TOKENS,
    SECONDS_PER_UNIT,
    HashIds,
    Ints,
    TraceFormat,
    TraceOptions,
    TraceTable,
)

ARRIVAL = ("arrival_s", "arrived_at")
PROMPT = ("prompt_tokens", "num_prefill_tokens")
OUTPUT = ("output_tokens", "num_decode_tokens")
_HASH_ID = re.compile("[0-9]{1,20}")
"""Any 64-bit number."""
_TEXT = ("adapter", "prefix_id", "tenant", "hash_ids")


def parse(text: str, source: str, options: TraceOptions) -> TraceTable:
    """Trace from a file's text."""
    return parse_layout(text, source, options, "csv", ())


def parse_layout(
    text: str, source: str, options: TraceOptions, trace_format: str, others: tuple[str, ...]
) -> TraceTable:
    """As parse, for a format that has the same columns and `others`, which are read past in silence."""
    columns = open_columns(text, source, options, _TEXT)
    stamp, prompt, output = columns.require(*ARRIVAL), columns.require(*PROMPT), columns.require(*OUTPUT)
    tenant, rank = columns.find("tenant"), columns.find("rank")
    prefix, block_tokens, prefix_columns = _prefix(columns, prompt)
    known = (tenant, rank, *prefix_columns, *map(columns.find, others))
    return table(
        columns,
        Layout(trace_format, stamp, prompt, output, columns.find("adapter"), known),
        options,
        columns.times(stamp) * SECONDS_PER_UNIT[options.unit or "s"],
        group=None if tenant is None else columns.labels(tenant),
        rank=None if rank is None else columns.integers(rank, 0, "a rank, or 0 for the base model", blank=0),
        prefix=prefix,
        prefix_block_tokens=block_tokens,
    )


def _prefix(columns: CsvTable, prompt: int) -> tuple[HashIds | None, int, tuple[int | None, ...]]:
    """Prefix ids, their granularity, and the columns they came from."""
    hash_ids, name = columns.find("hash_ids"), columns.find("prefix_id")
    if hash_ids is not None and name is not None:
        raise ConfigError(f"{columns.source}:1", "prefix_id", "hash_ids", "prefix_id or hash_ids, not both")
    if hash_ids is not None:
        block = columns.require("hash_block_tokens")
        return *_listed(columns, hash_ids, block, prompt), (hash_ids, block)
    if name is not None:
        length = columns.require("prefix_tokens")
        return _named(columns, name, length, prompt), PREFIX_BLOCK_TOKENS, (name, length)
    return None, PREFIX_BLOCK_TOKENS, ()


def _named(columns: CsvTable, name: int, length: int, prompt: int) -> HashIds:
    prefix_tokens = columns.tokens(length, 0)
    too_long = prefix_tokens > columns.tokens(prompt, 0)
    if too_long.any():
        raise columns.error(int(np.argmax(too_long)), length, "at most the row's prompt_tokens")
    labels = columns.labels(name)
    shared = np.where(labels.codes > 0, prefix_tokens, 0).astype(np.int32)
    return group_ids(labels.codes, shared, PREFIX_BLOCK_TOKENS)


def _listed(columns: CsvTable, hash_ids: int, block: int, prompt: int) -> tuple[HashIds, int]:
    blocks: Ints = columns.tokens(block, 1)
    if (blocks != blocks[0]).any():
        raise columns.error(int(np.argmax(blocks != blocks[0])), block, f"one value, {blocks[0]} as in the first row")
    size = int(blocks[0])
    limits = -(-columns.tokens(prompt, 0).astype(np.int64) // size)
    cells: list[Any] = columns.strings(hash_ids).tolist()
    rows = []
    for row, (cell, limit) in enumerate(zip(cells, limits.tolist(), strict=True)):
        words = cell.split()
        if len(words) > limit or not all(_HASH_ID.fullmatch(word) for word in words):
            raise columns.error(row, hash_ids, f"at most {limit} whole numbers separated by spaces")
        rows.append(tuple(map(int, words)))
    return tuple(rows), size


def write_canonical(table: TraceTable | RequestTable, path: str | Path) -> None:
    """Write arrival_s, adapter, prompt_tokens, output_tokens and what else the table holds; `.gz` compresses.

    The file appears whole or not at all, and equal tables give equal bytes. ConfigError if it cannot be written.
    """
    target = Path(path)
    data = canonical_text(table).encode()
    if target.suffix == ".gz":
        data = gzip.compress(data, mtime=0)
    partial = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        partial.write_bytes(data)
        partial.replace(target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ConfigError(str(path), "output", str(path), f"a file that can be written ({error.strerror})") from error


def canonical_text(table: TraceTable | RequestTable) -> str:
    """The CSV as text: floats in their shortest exact form, lines ending in LF."""
    more = _trace_columns(table) if isinstance(table, TraceTable) else {"adapter": table.adapter.tolist()}
    columns: dict[str, Iterable[Any]] = {
        "arrival_s": table.arrival_s.tolist(),
        "adapter": more.pop("adapter"),
        "prompt_tokens": table.prompt_tokens.tolist(),
        "output_tokens": table.output_tokens.tolist(),
        **more,
    }
    if table.prefix is not None:
        columns["hash_ids"] = [" ".join(map(str, ids)) for ids in table.prefix]
        columns["hash_block_tokens"] = [table.prefix_block_tokens] * len(table)
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return buffer.getvalue()


def _trace_columns(trace: TraceTable) -> dict[str, Iterable[Any]]:
    columns: dict[str, Iterable[Any]] = {"adapter": [""] * len(trace)}
    if trace.adapter is not None:
        columns["adapter"] = [trace.adapter.names[code] for code in trace.adapter.codes.tolist()]
    if trace.rank is not None:
        columns["rank"] = trace.rank.tolist()
    if trace.group is not None:
        columns["tenant"] = [trace.group.names[code] for code in trace.group.codes.tolist()]
    return columns


FORMAT = TraceFormat(
    "csv", parse, detect=lambda head: not head.columns.isdisjoint({"arrivals", "arrivedat"}), keeps_clock=True
)
