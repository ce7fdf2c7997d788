"""Reads a trace file of any supported format into one TraceTable: detects the format, parses, puts times in order."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from simlora.errors import ConfigError
from simlora.scenario.messages import brief
from simlora.workload import (
    trace_azure,
    trace_burstgpt,
    trace_csv,
    trace_mooncake,
    trace_simlora_run,
    trace_time,
    trace_vllm_bench,
)
from simlora.workload.trace import TraceOptions, TraceTable
from simlora.workload.trace_columns import header_of, normalised
from simlora.workload.trace_open import file_name, read_text

Parser = Callable[[str, str, TraceOptions], TraceTable]

PARSERS: dict[str, Parser] = {
    "azure": trace_azure.parse,
    "burstgpt": trace_burstgpt.parse,
    "mooncake": trace_mooncake.parse,
    "vllm-bench": trace_vllm_bench.parse,
    "simlora-run": trace_simlora_run.parse,
    "csv": trace_csv.parse,
}
FORMATS = tuple(PARSERS)

_KEEP_CLOCK = ("csv", "simlora-run")
"""Formats whose stamps already count from the start of the run; the others are moved to begin at 0."""

_ANY_ORDER = ("simlora-run", "vllm-bench")
"""Formats that list requests as they were offered; a stamp that goes back is no sign of a broken file."""

_FIXED_UNIT = ("azure", "vllm-bench")
"""Formats whose stamps can have no other unit."""


def read_trace(path: str | Path, options: TraceOptions | None = None) -> TraceTable:
    """Trace in `path`, a file (local path or URL, plain or compressed) or a recorded run's folder, sorted by arrival.

    Raises ConfigError, naming `file:line` and the value, for anything that is not a well-formed trace.
    """
    options = options or TraceOptions()
    name = str(path)
    if "://" not in name and Path(name).is_dir():
        _check_format(name, options.format, ("auto", "simlora-run"))
        return _timed(trace_simlora_run.read_run(Path(name), options), options)
    return parse_trace(read_text(name), file_name(name), options)


def parse_trace(text: str, source: str, options: TraceOptions) -> TraceTable:
    """Trace from the text of a file named `source`; see read_trace."""
    _check_format(source, options.format, ("auto", *FORMATS))
    trace_format = detect_format(text, source) if options.format == "auto" else options.format
    return _timed(PARSERS[trace_format](text, source, options), options)


def _check_format(source: str, trace_format: str, allowed: tuple[str, ...]) -> None:
    if trace_format not in allowed:
        raise ConfigError(source, "format", trace_format, f"one of {', '.join(allowed)}")


def _timed(trace: TraceTable, options: TraceOptions) -> TraceTable:
    if not len(trace):
        reasons = "; ".join(map(str, trace.dropped))
        raise ConfigError(trace.source, "trace", reasons, "at least one usable request")
    trace = trace_time.in_order(trace, math.inf if trace.format in _ANY_ORDER else options.sort_window_s)
    if trace.format not in _KEEP_CLOCK:
        trace = trace_time.from_zero(trace)
    if options.unit is None and trace.format not in _FIXED_UNIT:
        trace_time.check_unit(trace)
    trace_time.check_range(trace)
    return trace_time.spread(trace, options.seed) if options.jitter else trace


def detect_format(text: str, source: str) -> str:
    """Format by the first line; ConfigError when it fits none."""
    first = text.lstrip().partition("\n")[0].strip()
    if first.startswith(("{", "[")):
        return _detect_json(text, first, source)
    names = {normalised(name) for name in header_of(text, source)}
    if not names.isdisjoint({"contexttokens", "generatedtokens"}):
        return "azure"
    if not names.isdisjoint({"requesttokens", "responsetokens"}):
        return "burstgpt"
    if {"arrivals", "ttfts", "e2es"} <= names:
        return "simlora-run"
    if not names.isdisjoint({"arrivals", "arrivedat"}):
        return "csv"
    raise _unknown(first, source)


def _detect_json(text: str, first: str, source: str) -> str:
    record = _object(first)
    if record is not None and "input_length" in record:
        return "mooncake"
    if record is None:
        record = _object(text)
    if record is not None and not record.keys().isdisjoint({"input_lens", "request_throughput", "total_input_tokens"}):
        return "vllm-bench"
    raise _unknown(first, source)


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _unknown(first: str, source: str) -> ConfigError:
    return ConfigError(
        source, "format", brief(first), f"not a header of {', '.join(FORMATS)}; state format if it is one"
    )
