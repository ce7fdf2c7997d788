"""Results of `vllm bench serve --save-result --save-detailed`: one JSON object, lengths per request as lists.

Arrival times are in the file only if it has start_times. Otherwise they are drawn again as the benchmark drew them:
gamma gaps of mean 1 / request_rate and shape `burstiness` (1 = Poisson), or all at once for the rate "inf".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from simlora.errors import ConfigError
from simlora.scenario.base import brief
from simlora.workload import arrivals
from simlora.workload.rng import rng
from simlora.workload.traces.columns import FAILED, labels_of
from simlora.workload.traces.json_values import field, is_number, label, loads, time, tokens
from simlora.workload.traces.table import Floats, Ints, Labels, TraceFormat, TraceOptions, TraceTable


def parse(text: str, source: str, options: TraceOptions) -> TraceTable:
    """Trace from a file's text. Requests that failed (an error, or no output) are dropped and counted by default."""
    if options.unit is not None:
        raise ConfigError(source, "unit", options.unit, "none: vllm-bench files are in seconds")
    record = loads(text, source)
    if not isinstance(record, dict):
        raise ConfigError(source, "JSON", type(record).__name__, "one object, the result of one benchmark")
    if "input_lens" not in record or "output_lens" not in record:
        allowed = "missing: the file holds a summary only; record it with --save-detailed"
        raise ConfigError(source, "input_lens", None, allowed)
    drop = (options.failures or "drop") == "drop"
    prompt = _token_list(record, "input_lens", source, 0 if drop else 1)
    output = _token_list(record, "output_lens", source, 0 if drop else 1)
    if len(prompt) != len(output):
        raise ConfigError(source, "input_lens", f"{len(prompt)} values", f"{len(output)}, as output_lens has")
    errors = _list(record, "errors", source, len(output)) if "errors" in record else [""] * len(output)
    trace = TraceTable(
        source=source,
        format="vllm-bench",
        arrival_s=np.zeros(len(output)),
        prompt_tokens=prompt,
        output_tokens=output,
        row=np.arange(len(output), dtype=np.int64),
        line_of=lambda row: 1,
        adapter=_adapters(record, options.adapter_column, source, len(output)),
    )
    trace = _with_arrivals(trace, record, options.seed)
    failed = np.array([bool(error) for error in errors]) | (output == 0)
    if not drop and failed.any():
        allowed = "no failed request (or let failures be dropped)"
        raise ConfigError(source, f"errors[{int(np.argmax(failed))}]", errors[int(np.argmax(failed))], allowed)
    empty = (prompt == 0) & ~failed
    if empty.any():
        key = f"input_lens[{int(np.argmax(empty))}]"
        raise ConfigError(source, key, 0, "a whole number of tokens of at least 1")
    return trace.drop(failed, FAILED)


def _list(record: dict[str, Any], key: str, source: str, length: int | None = None) -> list[Any]:
    value = field(record, key, source)
    if not isinstance(value, list) or not value:
        raise ConfigError(source, key, type(value).__name__, "a list with one value per request")
    if length is not None and len(value) != length:
        raise ConfigError(source, key, f"{len(value)} values", f"{length}, as output_lens has")
    return value


def _token_list(record: dict[str, Any], key: str, source: str, minimum: int) -> Ints:
    values = [tokens(item, f"{key}[{index}]", source, minimum) for index, item in enumerate(_list(record, key, source))]
    return np.array(values, dtype=np.int32)


def _adapters(record: dict[str, Any], key: str | None, source: str, count: int) -> Labels | None:
    if key is None:
        return None
    values = _list(record, key, source, count)
    return labels_of([label(value, f"{key}[{index}]", source) for index, value in enumerate(values)])


def _with_arrivals(trace: TraceTable, record: dict[str, Any], seed: int) -> TraceTable:
    source = trace.source
    if "start_times" in record:
        starts = _list(record, "start_times", source, len(trace))
        times = [time(item, f"start_times[{index}]", source) for index, item in enumerate(starts)]
        start_s = np.array(times, dtype=np.float64)
        return replace(trace, arrival_s=start_s - start_s.min())
    arrival_s, note = _drawn(record, source, len(trace), seed)
    trace = replace(trace, arrival_s=arrival_s).note(note)
    limit = record.get("max_concurrency")
    if limit is not None:
        trace = trace.note(f"max_concurrency was {limit} while recording; arrivals here do not wait for completions")
    return trace


def _drawn(record: dict[str, Any], source: str, count: int, seed: int) -> tuple[Floats, str]:
    rate, burstiness = field(record, "request_rate", source), record.get("burstiness", 1.0)
    if rate in ("inf", float("inf")):
        return np.zeros(count), f"request_rate inf: all {count} requests arrive at 0"
    if not is_number(rate) or rate <= 0:
        raise ConfigError(source, "request_rate", brief(rate), 'a rate above 0 per second, or "inf"')
    if not is_number(burstiness) or burstiness <= 0:
        raise ConfigError(source, "burstiness", brief(burstiness), "a gamma shape above 0")
    window = arrivals.Window(num_requests=count)
    times_s = arrivals.gamma(rng(seed, "trace.arrivals"), float(rate), float(burstiness) ** -0.5, window)
    note = f"arrival times are not recorded: drawn at {rate:g} req/s, burstiness {burstiness:g}, seed {seed}"
    return times_s, note


FORMAT = TraceFormat(
    "vllm-bench",
    parse,
    detect=lambda head: not head.keys.isdisjoint({"input_lens", "request_throughput", "total_input_tokens"}),
    any_order=True,
    fixed_unit=True,
)
