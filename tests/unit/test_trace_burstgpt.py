"""BurstGPT v1 and v2: names with spaces, failures as 0 response tokens, sessions."""

from __future__ import annotations

import pytest

from simlora.errors import ConfigError
from simlora.workload.traces.reader import parse_trace
from simlora.workload.traces.table import TraceOptions, TraceTable

V1 = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
V2 = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def read(text: str, **options: object) -> TraceTable:
    return parse_trace(text, "burst.csv", TraceOptions(**options))  # type: ignore[arg-type]


def test_v1_starts_at_zero_and_groups_by_model_and_log_type() -> None:
    chat = "5,ChatGPT,472,18,490,Conversation log\n"
    trace = read(V1 + chat + "45.5,GPT-4,1087,230,1317,API log\n118,ChatGPT,417,276,693,Conversation log\n")
    assert trace.format == "burstgpt"
    assert trace.arrival_s.tolist() == [0.0, 40.5, 113.0]
    assert trace.prompt_tokens.tolist() == [472, 1087, 417]
    assert trace.group is not None
    names = [trace.group.names[code] for code in trace.group.codes]
    assert names == ["ChatGPT / Conversation log", "GPT-4 / API log", "ChatGPT / Conversation log"]
    assert (trace.adapter, trace.notes) == (None, ())


def test_v2_groups_by_session() -> None:
    trace = read(V2 + "0,17,1.5,GPT-4,5,6,11,API log\n1,,1.5,GPT-4,5,6,11,API log\n2,17,2.0,GPT-4,5,6,11,API log\n")
    assert trace.group is not None
    assert [trace.group.names[code] for code in trace.group.codes] == ["17", "", "17"]


def test_failed_rows_are_dropped_counted_and_located() -> None:
    rows = ["1,GPT-4,5,0,5,API log"] * 7 + ["2,GPT-4,5,6,11,API log", "3,GPT-4,0,0,0,API log"]
    trace = read(V1 + "\n".join(rows))
    assert len(trace) == 1
    reason = "8 rows dropped: failed requests (no output tokens) (line 2, 3, 4, 5, 6, ...)"
    assert [str(item) for item in trace.dropped] == [reason]
    assert trace.where(0) == "burst.csv:9"


def test_failures_can_be_errors() -> None:
    with pytest.raises(ConfigError) as caught:
        read(V1 + "1,GPT-4,5,6,11,API log\n1,GPT-4,5,0,5,API log\n", failures="error")
    allowed = "a whole number of tokens of at least 1"
    assert str(caught.value) == f"burst.csv:3: Response tokens: '0': {allowed}"


def test_a_trace_of_failures_only_has_nothing_to_replay() -> None:
    with pytest.raises(ConfigError) as caught:
        read(V1 + "1,GPT-4,5,0,5,API log\n")
    dropped = "1 rows dropped: failed requests (no output tokens) (line 2)"
    assert str(caught.value) == f"burst.csv: trace: {dropped!r}: at least one usable request"


def test_the_model_can_stand_for_the_adapter() -> None:
    trace = read(V1 + "1,GPT-4,5,6,11,API log\n2,ChatGPT,5,6,11,API log\n", adapter_column="Model")
    assert trace.adapter is not None
    assert [trace.adapter.names[code] for code in trace.adapter.codes] == ["GPT-4", "ChatGPT"]
