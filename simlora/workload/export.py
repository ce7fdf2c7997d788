"""Writes requests as simlora's own CSV, which trace_csv reads back without loss."""

from __future__ import annotations

import gzip
import io
import os
from pathlib import Path
from typing import Any

import pandas as pd

from simlora.errors import ConfigError
from simlora.workload.request_table import RequestTable
from simlora.workload.trace import TraceTable


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
    columns = _trace_columns(table) if isinstance(table, TraceTable) else {"adapter": table.adapter}
    frame: dict[str, Any] = {
        "arrival_s": table.arrival_s,
        "adapter": columns.pop("adapter"),
        "prompt_tokens": table.prompt_tokens,
        "output_tokens": table.output_tokens,
        **columns,
    }
    if table.prefix is not None:
        frame["hash_ids"] = [" ".join(map(str, ids)) for ids in table.prefix]
        frame["hash_block_tokens"] = table.prefix_block_tokens
    buffer = io.StringIO()
    pd.DataFrame(frame).to_csv(buffer, index=False, lineterminator="\n")
    return buffer.getvalue()


def _trace_columns(trace: TraceTable) -> dict[str, Any]:
    columns: dict[str, Any] = {"adapter": ""}
    if trace.adapter is not None:
        columns["adapter"] = [trace.adapter.names[code] for code in trace.adapter.codes.tolist()]
    if trace.rank is not None:
        columns["rank"] = trace.rank
    if trace.group is not None:
        columns["tenant"] = [trace.group.names[code] for code in trace.group.codes.tolist()]
    return columns
