"""simlora's own CSV: optional columns, prefixes, and writing what was read."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from simlora.errors import ConfigError
from simlora.workload.adapter_table import AdapterTable
from simlora.workload.traces.reader import parse_trace, read_trace
from simlora.workload.traces.replay import trace_requests
from simlora.workload.traces.simlora_csv import canonical_text, write_canonical
from simlora.workload.traces.table import TraceOptions, TraceTable


def read(text: str, **options: object) -> TraceTable:
    return parse_trace(text, "t.csv", TraceOptions(**options))  # type: ignore[arg-type]


def test_the_shortest_trace() -> None:
    trace = read("arrival_s,prompt_tokens,output_tokens\n0.5,10,2\n")
    assert (trace.format, trace.arrival_s.tolist()) == ("csv", [0.5])
    assert (trace.adapter, trace.group, trace.rank, trace.prefix) == (None, None, None, None)


def test_vidurs_spelling_is_understood() -> None:
    trace = read("arrived_at,num_prefill_tokens,num_decode_tokens\n0,10,2\n")
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([10], [2])


def test_order_quotes_blank_lines_a_mark_and_spaces_do_not_matter() -> None:
    text = '\n output_tokens ,"adapter",prompt_tokens,arrival_s\n\n2,"a,b",10.0, 1\n3, c ,1e2,2\n\n'
    trace = read(text)
    assert trace.prompt_tokens.tolist() == [10, 100]
    assert trace.adapter is not None
    assert [trace.adapter.names[code] for code in trace.adapter.codes] == ["a,b", "c"]
    assert [trace.where(index) for index in (0, 1)] == ["t.csv:4", "t.csv:5"]


def test_units() -> None:
    assert read("arrival_s,prompt_tokens,output_tokens\n0,1,1\n250,1,1\n", unit="ms").arrival_s.tolist() == [0.0, 0.25]


def test_named_prefixes_become_block_ids() -> None:
    header = "arrival_s,prompt_tokens,output_tokens,prefix_id,prefix_tokens\n"
    trace = read(header + "0,100,1,a,40\n1,100,1,b,32\n2,100,1,a,16\n3,9,1,,0\n")
    assert trace.prefix is not None and trace.prefix_block_tokens == 16
    first, second, third, none = trace.prefix
    assert [len(ids) for ids in trace.prefix] == [2, 2, 1, 0]
    assert first[:1] == third and not set(first) & set(second) and none == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "arrival_s,prompt_tokens,output_tokens,prefix_id,prefix_tokens\n0,10,1,a,11\n",
            "t.csv:2: prefix_tokens: '11': at most the row's prompt_tokens",
        ),
        (
            "arrival_s,prompt_tokens,output_tokens,prefix_id\n0,10,1,a\n",
            "t.csv:1: prefix_tokens: 'arrival_s,prompt_tokens,output_tokens,prefix_id': missing from the header",
        ),
        (
            "arrival_s,prompt_tokens,output_tokens,hash_ids,hash_block_tokens\n0,10,1,1 x,16\n",
            "t.csv:2: hash_ids: '1 x': at most 1 whole numbers separated by spaces",
        ),
        (
            "arrival_s,prompt_tokens,output_tokens,hash_ids,hash_block_tokens\n0,17,1,1 2 3,16\n",
            "t.csv:2: hash_ids: '1 2 3': at most 2 whole numbers separated by spaces",
        ),
        (
            "arrival_s,prompt_tokens,output_tokens,hash_ids,hash_block_tokens\n0,17,1,1,16\n1,17,1,1,32\n",
            "t.csv:3: hash_block_tokens: '32': one value, 16 as in the first row",
        ),
        (
            "arrival_s,prompt_tokens,output_tokens,prefix_id,prefix_tokens,hash_ids\n0,17,1,a,1,1\n",
            "t.csv:1: prefix_id: 'hash_ids': prefix_id or hash_ids, not both",
        ),
        (
            "arrival_s,prompt_tokens,output_tokens,rank\n0,17,1,high\n",
            "t.csv:2: rank: 'high': a rank, or 0 for the base model",
        ),
    ],
)
def test_wrong_optional_columns(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert str(caught.value) == message


FULL = (
    "arrival_s,adapter,prompt_tokens,output_tokens,rank,tenant,hash_ids,hash_block_tokens\n"
    '0.1,a,600,2,8,"t,1",4 5,512\n'
    "0.30000000000000004,,10,3,0,t2,,512\n"
    "0.30000000000000004,b,512,1,16,,9,512\n"
)


def test_what_is_written_is_what_was_read() -> None:
    assert canonical_text(read(FULL)) == FULL


def test_requests_are_written_with_adapter_numbers() -> None:
    adapters = AdapterTable(2, np.array([0, 8, 16], dtype=np.int32), np.array([0.0, 0.5, 0.5]))
    table = trace_requests(read(FULL), adapters, "sample", 1)
    again = trace_requests(read(canonical_text(table)), adapters, "sample", 1)
    for column in ("arrival_s", "adapter", "prompt_tokens", "output_tokens"):
        assert getattr(table, column).tolist() == getattr(again, column).tolist()
    assert (table.prefix, table.prefix_block_tokens) == (again.prefix, again.prefix_block_tokens)


def test_ranks_that_differ_from_the_adapters_are_noted() -> None:
    adapters = AdapterTable(2, np.array([0, 8, 8], dtype=np.int32), np.array([0.0, 0.5, 0.5]))
    notes = trace_requests(read(FULL), adapters, "sample", 1).notes
    assert "t.csv: 1 requests name another rank than their adapter has here, which is used" in notes


def test_files_are_written_whole_plain_and_compressed_with_equal_bytes(tmp_path: Path) -> None:
    trace = read(FULL)
    for name in ("a.csv", "a.csv.gz"):
        write_canonical(trace, tmp_path / name)
        first = (tmp_path / name).read_bytes()
        write_canonical(trace, tmp_path / name)
        assert (tmp_path / name).read_bytes() == first
        assert canonical_text(read_trace(tmp_path / name)) == FULL
    assert gzip.decompress(first).decode() == FULL
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "a.csv.gz"]


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    target = tmp_path / "nowhere" / "a.csv"
    with pytest.raises(ConfigError) as caught:
        write_canonical(read(FULL), target)
    allowed = "a file that can be written (No such file or directory)"
    assert str(caught.value) == f"{target}: output: {str(target)!r}: {allowed}"
