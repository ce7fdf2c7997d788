"""Azure traces: CRLF, no newline at the end, 7 fractional digits, zones, other spellings of the header."""

from __future__ import annotations

import pytest

from simlora.errors import ConfigError
from simlora.workload.traces.reader import parse_trace
from simlora.workload.traces.table import TraceOptions, TraceTable

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"


def read(text: str, **options: object) -> TraceTable:
    return parse_trace(text, "azure.csv", TraceOptions(**options))  # type: ignore[arg-type]


def test_the_files_of_2023_with_crlf_and_no_newline_at_the_end() -> None:
    trace = read(f"{HEADER}\r\n2023-11-16 18:17:03.9799600,4808,10\r\n2023-11-16 18:17:04.0319600,3180,8")
    assert trace.format == "azure"
    assert trace.arrival_s.tolist() == [0.0, 0.052]
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([4808, 3180], [10, 8])
    assert trace.where(1) == "azure.csv:3"


def test_seven_digits_are_kept_and_fewer_are_understood() -> None:
    trace = read(f"{HEADER}\n2023-11-16 18:17:03,1,1\n2023-11-16 18:17:03.0000001,1,1\n2023-11-16 18:17:03.25,1,1\n")
    assert trace.arrival_s.tolist() == [0.0, 1e-7, 0.25]


def test_zones_of_2024_are_honoured() -> None:
    rows = ["2024-05-10 00:00:00.5+00:00,1,1", "2024-05-10T02:00:01+02:00,2,1", "2024-05-10 00:00:01.5Z,3,1"]
    trace = read("\n".join([HEADER, *rows]))
    assert trace.arrival_s.tolist() == [0.0, 0.5, 1.0]


def test_a_trace_may_cross_midnight_and_a_leap_day() -> None:
    trace = read(f"{HEADER}\n2024-02-28 23:59:59,1,1\n2024-03-01 00:00:01,1,1\n")
    assert trace.arrival_s.tolist() == [0.0, 86402.0]


def test_header_aliases_and_more_columns() -> None:
    trace = read("Timestamp, NumImages ,context_tokens,Generated Tokens\n2023-11-16 18:17:03,2,7,9\n")
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([7], [9])
    assert trace.notes == ("columns ignored: NumImages",)


def test_failed_rows_are_an_error_or_dropped_as_asked() -> None:
    text = f"{HEADER}\n2023-11-16 18:17:03,5,0\n2023-11-16 18:17:04,5,1\n"
    with pytest.raises(ConfigError, match=r"azure\.csv:2: GeneratedTokens: '0'"):
        read(text)
    trace = read(text, failures="drop")
    assert trace.arrival_s.tolist() == [0.0]
    assert [str(item) for item in trace.dropped] == ["1 rows dropped: failed requests (no output tokens) (line 2)"]


def test_an_adapter_column_may_be_named() -> None:
    trace = read(f"{HEADER},tenant\n2023-11-16 18:17:03,5,1,acme\n", adapter_column="Tenant")
    assert trace.adapter is not None and trace.adapter.names == ("", "acme")
    assert trace.notes == ()
