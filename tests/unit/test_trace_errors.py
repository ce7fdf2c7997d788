"""Wrong traces, each with its exact message: file and line, column, value, what is allowed."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from simlora.errors import ConfigError
from simlora.workload.traces.reader import parse_trace, read_trace
from simlora.workload.traces.table import TraceOptions

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
CSV = "arrival_s,adapter,prompt_tokens,output_tokens\n"
ONE = "a whole number of tokens of at least 1"
STAMP = "a time stamp like 2023-11-16 18:17:03.9799600, with or without a zone"

WRONG = {
    "azure: text for tokens": (AZURE + "2023-11-16 18:17:03,many,1\n", f"t:2: ContextTokens: 'many': {ONE}"),
    "azure: negative": (AZURE + "2023-11-16 18:17:03,5,-1\n", f"t:2: GeneratedTokens: '-1': {ONE}"),
    "azure: fraction": (AZURE + "2023-11-16 18:17:03,5.5,1\n", f"t:2: ContextTokens: '5.5': {ONE}"),
    "azure: nan": (AZURE + "2023-11-16 18:17:03,nan,1\n", f"t:2: ContextTokens: 'nan': {ONE}"),
    "azure: infinity": (AZURE + "2023-11-16 18:17:03,inf,1\n", f"t:2: ContextTokens: 'inf': {ONE}"),
    "azure: true": (AZURE + "2023-11-16 18:17:03,True,1\n", f"t:2: ContextTokens: 'True': {ONE}"),
    "azure: too large": (AZURE + "2023-11-16 18:17:03,1e30,1\n", f"t:2: ContextTokens: '1e30': {ONE}"),
    "azure: huge": (AZURE + f"2023-11-16 18:17:03,{'9' * 30},1\n", f"t:2: ContextTokens: '{'9' * 30}': {ONE}"),
    "azure: an empty cell": (AZURE + "2023-11-16 18:17:03,,1\n", f"t:2: ContextTokens: '': {ONE}"),
    "azure: a short row": (AZURE + "2023-11-16 18:17:03,5\n", f"t:2: GeneratedTokens: '': {ONE}"),
    "azure: a long row": (
        AZURE + "2023-11-16 18:17:03,5,6\n2023-11-16 18:17:03,5,6,7\n",
        "t:3: row: '2023-11-16 18:17:03,5,6,7': 3 fields, as the header has",
    ),
    "azure: a very long row": (
        AZURE + "2023-11-16 18:17:03,5,6\n2023-11-16 18:17:03,5,6,7,8,9\n",
        "t:3: row: '2023-11-16 18:17:03,5,6,7,8,9': 3 fields, as the header has",
    ),
    "azure: zero output": (AZURE + "2023-11-16 18:17:03,5,0\n", f"t:2: GeneratedTokens: '0': {ONE}"),
    "azure: seconds for a stamp": (AZURE + "12.5,5,1\n", f"t:2: TIMESTAMP: '12.5': {STAMP}"),
    "azure: a day that does not exist": (
        AZURE + "2023-11-16 18:17:03,5,1\n2023-02-30 18:17:03,5,1\n",
        f"t:3: TIMESTAMP: '2023-02-30 18:17:03': {STAMP}",
    ),
    "azure: a year out of range": (
        AZURE + "0001-01-01 00:00:00,5,1\n",
        f"t:2: TIMESTAMP: '0001-01-01 00:00:00': {STAMP}",
    ),
    "azure: a line number after blank lines": (
        "\n" + AZURE + "\n2023-11-16 18:17:03,5,1\n\nx,5,1\n",
        f"t:6: TIMESTAMP: 'x': {STAMP}",
    ),
    "azure: stamps that go back": (
        AZURE + "2023-11-16 18:17:33,5,1\n2023-11-16 18:17:03,5,1\n",
        "t:3: time stamp: 0.0: time stamps that go back by at most 10 s (this one by 30 s)",
    ),
    "azure: a missing column": (
        "TIMESTAMP,ContextTokens\n2023-11-16 18:17:03,5\n",
        "t:1: GeneratedTokens: 'TIMESTAMP,ContextTokens': missing from the header",
    ),
    "azure: a column twice": (
        "TIMESTAMP,ContextTokens,GeneratedTokens,context tokens\n2023-11-16 18:17:03,5,1,1\n",
        "t:1: ContextTokens: 'ContextTokens, context tokens': one such column",
    ),
    "azure: a header only": (AZURE, "t: trace: 'TIMESTAMP,ContextTokens,GeneratedTokens': no rows below the header"),
    "burstgpt: negative stamp": (BURST + "-1,GPT-4,5,6,11,API log\n", "t:2: Timestamp: '-1': a time of at least 0"),
    "burstgpt: no prompt": (BURST + "1,GPT-4,0,6,6,API log\n", f"t:2: Request tokens: '0': {ONE}"),
    "burstgpt: milliseconds": (
        BURST + "0,GPT-4,5,6,11,API log\n5000000,GPT-4,5,6,11,API log\n",
        "t: unit: None: s, ms, us or ns, stated: as read, the trace has 2e-07 requests per second",
    ),
    "csv: nan": (CSV + "nan,1,5,6\n", "t:2: arrival_s: 'nan': a time of at least 0"),
    "csv: infinity": (CSV + "0,1,5,6\n-inf,1,5,6\n", "t:3: arrival_s: '-inf': a time of at least 0"),
    "csv: zero prompt": (CSV + "0,1,0,6\n", f"t:2: prompt_tokens: '0': {ONE}"),
    "csv: nanoseconds": (
        CSV + "".join(f"{index * 1e-7},1,5,6\n" for index in range(5)),
        "t: unit: None: s, ms, us or ns, stated: as read, the trace has 1e+07 requests per second",
    ),
    "csv: seconds since 1970": (
        CSV + "1700158623.5,1,5,6\n1700158624.5,1,5,6\n",
        "t:3: time stamp: 1700158624.5: seconds from the start of the trace, at most 1e+08",
    ),
    "csv: an open quote": (CSV + '0,1,5,6\n1,"1,5,6\n2,1,5,6\n', "t:3: row: '\"': a closing quote"),
    "unknown header": (
        "time,in,out\n1,2,3\n",
        "t: format: 'time,in,out': not a header of azure, burstgpt, mooncake, vllm-bench, simlora-run, csv; "
        "state format if it is one",
    ),
    "unknown JSON": (
        '{"t": 1, "in": 5}\n',
        't: format: \'{"t": 1, "in": 5}\': not a header of azure, burstgpt, mooncake, vllm-bench, simlora-run, csv; '
        "state format if it is one",
    ),
}


@pytest.mark.parametrize(("text", "message"), WRONG.values(), ids=list(WRONG))
def test_wrong_traces(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_trace(text, "t", TraceOptions())
    assert str(caught.value) == message


OPTIONS = {
    "another format": (CSV + "0,1,5,6\n", TraceOptions(format="xml"), "t: format: 'xml': one of auto, azure, burstgpt, "
        "mooncake, vllm-bench, simlora-run, csv"),
    "a format that it is not": (CSV + "0,1,5,6\n", TraceOptions(format="azure"),
        "t:1: TIMESTAMP: 'arrival_s,adapter,prompt_tokens,output_tokens': missing from the header"),
    "a unit for wall-clock times": (AZURE + "2023-11-16 18:17:03,5,1\n", TraceOptions(unit="ms"),
        "t: unit: 'ms': none: azure stamps are wall-clock times"),
    "an adapter column that is not there": (AZURE + "2023-11-16 18:17:03,5,1\n", TraceOptions(adapter_column="lora"),
        "t:1: lora: 'TIMESTAMP,ContextTokens,GeneratedTokens': missing from the header"),
    "mooncake that is no JSON": (CSV, TraceOptions(format="mooncake"),
        f"t:1: JSON: {CSV!r}: valid JSON (Expecting value: line 1 column 1 (char 0))"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "options", "message"), OPTIONS.values(), ids=list(OPTIONS))
def test_wrong_options(text: str, options: TraceOptions, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_trace(text, "t", options)
    assert str(caught.value) == message


FILES = {
    "empty": (b"", "t.csv: trace: '': the file is empty"),
    "blank": (b" \r\n\n", "t.csv: trace: '': the file is empty"),
    "not UTF-8": (
        b"a,b\n1,\xff\n",
        "t.csv:2: encoding: b'\\xff': UTF-8 text (a compressed file needs its suffix, such as .gz)",
    ),
    "binary": (b"a,b\n1,\0\n", "t.csv:2: encoding: '\\x00': a trace is text, this file holds binary data"),
    "gzip without its suffix": (
        gzip.compress(b"a,b\n"),
        "t.csv:1: encoding: b'\\x8b': UTF-8 text (a compressed file needs its suffix, such as .gz)",
    ),
}


@pytest.mark.parametrize(("data", "message"), FILES.values(), ids=list(FILES))
def test_wrong_files(data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        read_trace(tmp_path / "t.csv")
    assert str(caught.value) == message


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    missing = str(tmp_path / "nope.csv")
    with pytest.raises(ConfigError) as caught:
        read_trace(missing)
    assert str(caught.value) == f"{missing}: trace: {missing!r}: no such file"
    broken = tmp_path / "t.csv.gz"
    broken.write_bytes(b"no gzip")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_trace(broken)
    broken.write_bytes(gzip.compress(b"a,b\n" * 1000)[:-20])
    with pytest.raises(ConfigError, match="cannot be read"):
        read_trace(broken)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_trace("nosuchprotocol://x/y.csv")


def test_a_byte_order_mark_and_gzip_are_fine(tmp_path: Path) -> None:
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + CSV.encode() + b"0,1,5,6\n"))
    assert len(read_trace(tmp_path / "t.csv.gz")) == 1


def test_a_stated_unit_silences_the_plausibility_check() -> None:
    text = CSV + "0,1,5,6\n5000000,1,5,6\n"
    assert parse_trace(text, "t", TraceOptions(unit="s")).arrival_s[-1] == 5e6


def test_small_disorder_is_sorted_and_said() -> None:
    trace = parse_trace(CSV + "0,1,5,1\n9,1,5,2\n2,1,5,3\n9,1,5,4\n", "t", TraceOptions())
    assert trace.arrival_s.tolist() == [0.0, 2.0, 9.0, 9.0]
    assert trace.output_tokens.tolist() == [1, 3, 2, 4]
    assert trace.notes == ("1 rows were out of order by at most 7 s and have been sorted",)
    assert trace.where(1) == "t:4"
    with pytest.raises(ConfigError, match="go back by at most 5 s"):
        parse_trace(CSV + "0,1,5,1\n9,1,5,2\n2,1,5,3\n", "t", TraceOptions(sort_window_s=5.0))
