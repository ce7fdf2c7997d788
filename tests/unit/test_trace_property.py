"""Laws of all readers: whatever the bytes, a trace or a ConfigError; and what is written is read back equal."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simlora.errors import ConfigError
from simlora.scenario.trace_formats import TRACE_FORMATS
from simlora.workload.adapter_table import AdapterTable
from simlora.workload.request_table import RequestTable
from simlora.workload.traces.describe import describe_trace
from simlora.workload.traces.reader import parse_trace, read_trace
from simlora.workload.traces.replay import trace_requests
from simlora.workload.traces.simlora_csv import canonical_text, write_canonical
from simlora.workload.traces.table import TraceOptions
from simlora.workload.traces.text_file import decode

HEADERS = {
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens",
    "burstgpt": "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type",
    "csv": "arrival_s,adapter,prompt_tokens,output_tokens,prefix_id,prefix_tokens,tenant",
    "simlora-run": "arrival_s,adapter,rank,prompt_tokens,output_tokens,ttft_s,e2e_s,hash_ids,hash_block_tokens",
}

CELLS = st.one_of(
    st.integers(-2, 5000).map(str),
    st.floats(allow_nan=True, allow_infinity=True).map(repr),
    st.sampled_from(
        ["", " ", "0", "nan", "NA", "-0.0", "1e5", "1e400", "0x10", "1_000", "True", '"', '"a,b"', "'", "1 2 3", "\r"]
    ),
    st.sampled_from(["2023-11-16 18:17:03.9799600", "2024-05-10T00:00:00+00:00", "0001-01-01 00:00:00", "9999-99-99"]),
    st.text(max_size=8),
)
LINES = st.lists(st.lists(CELLS, max_size=10).map(",".join), max_size=6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
MOONCAKE_KEYS = ("timestamp", "input_length", "output_length", "hash_ids")
BENCH_KEYS = ("input_lens", "output_lens", "request_rate", "burstiness", "errors", "start_times", "max_concurrency")


def objects(keys: tuple[str, ...]) -> st.SearchStrategy[str]:
    """JSON objects that have most of the keys and values of any kind."""
    lists = st.lists(st.integers(-1, 2000) | VALUES, max_size=4)
    return st.fixed_dictionaries({}, optional={key: st.integers(0, 2000) | lists | VALUES for key in keys}).map(
        json.dumps
    )


def only_config_error(text: str, trace_format: str) -> None:
    options = TraceOptions(format=trace_format, jitter=True)
    try:
        trace = parse_trace(text, "t", options)
    except ConfigError as error:
        assert str(error).startswith("t:")
        return
    assert len(trace) > 0
    assert np.isfinite(trace.arrival_s).all() and (trace.arrival_s >= 0).all()
    assert (np.diff(trace.arrival_s) >= 0).all()
    assert min(trace.prompt_tokens.min(), trace.output_tokens.min()) >= 1
    describe_trace(trace)
    canonical_text(trace)


every_format = pytest.mark.parametrize("trace_format", ["auto", *TRACE_FORMATS])
thorough = settings(max_examples=40)


@every_format
@given(data=st.binary(max_size=200))
@thorough
def test_any_bytes_are_a_trace_or_a_config_error(trace_format: str, data: bytes) -> None:
    try:
        text = decode(data, "t")
    except ConfigError:
        return
    only_config_error(text, trace_format)


@every_format
@given(text=st.text(max_size=100).filter(str.strip))
@thorough
def test_any_text_is_a_trace_or_a_config_error(trace_format: str, text: str) -> None:
    only_config_error(text, trace_format)


@pytest.mark.parametrize(("trace_format", "header"), HEADERS.items())
@given(lines=LINES, ending=st.sampled_from(["\n", "\r\n"]))
@thorough
def test_any_cells_below_a_header(trace_format: str, header: str, lines: list[str], ending: str) -> None:
    text = ending.join([header, *lines])
    only_config_error(text, trace_format)
    only_config_error(text, "auto")


@given(lines=st.lists(objects(MOONCAKE_KEYS), min_size=1, max_size=4))
@thorough
def test_any_json_lines(lines: list[str]) -> None:
    only_config_error("\n".join(lines), "mooncake")
    only_config_error("\n".join(lines), "auto")


@given(text=objects(BENCH_KEYS))
@thorough
def test_any_benchmark_result(text: str) -> None:
    only_config_error(text, "vllm-bench")
    only_config_error(text, "auto")


def test_deeply_nested_json_is_an_error_too() -> None:
    for text in ("[" * 100_000, '{"a":' * 100_000, '{"input_length": ' + "9" * 5000 + "}"):
        for trace_format in ("auto", "mooncake", "vllm-bench"):
            only_config_error(text, trace_format)


@st.composite
def tables(draw: st.DrawFn) -> RequestTable:
    """Any well-formed table of requests for up to 5 adapters, with or without prefixes."""
    size = draw(st.integers(1, 12))
    times = st.floats(0, 1e7, allow_subnormal=True)
    lengths = st.lists(st.integers(1, 2**31 - 1), min_size=size, max_size=size)
    prompt = draw(lengths)
    block = draw(st.sampled_from([16, 512]))
    prefix = None
    if draw(st.booleans()):
        ids = st.integers(0, 2**64 - 1)
        prefix = tuple(tuple(draw(st.lists(ids, max_size=min(4, -(-tokens // block))))) for tokens in prompt)
    return RequestTable(
        arrival_s=np.array(sorted(draw(st.lists(times, min_size=size, max_size=size)))),
        adapter=np.array(draw(st.lists(st.integers(0, 5), min_size=size, max_size=size)), dtype=np.int32),
        prompt_tokens=np.array(prompt, dtype=np.int32),
        output_tokens=np.array(draw(lengths), dtype=np.int32),
        prefix=prefix,
        prefix_block_tokens=block if prefix is not None else 16,
        notes=(),
    )


ADAPTERS = AdapterTable(5, np.array([0, 8, 8, 8, 8, 8], dtype=np.int32), np.array([0.0, 0.2, 0.2, 0.2, 0.2, 0.2]))


@given(table=tables())
@thorough
def test_a_table_written_and_read_back_is_equal(tmp_path_factory: pytest.TempPathFactory, table: RequestTable) -> None:
    path = tmp_path_factory.getbasetemp() / "table.csv"
    write_canonical(table, Path(path))
    again = trace_requests(read_trace(path, TraceOptions(unit="s")), ADAPTERS, "sample", 1)
    for column in ("arrival_s", "adapter", "prompt_tokens", "output_tokens"):
        assert getattr(again, column).tolist() == getattr(table, column).tolist()
        assert getattr(again, column).dtype == getattr(table, column).dtype
    assert (again.prefix, again.prefix_block_tokens) == (table.prefix, table.prefix_block_tokens)
