"""Mooncake: milliseconds, hash ids of 512-token blocks, a clock that ticks every 3 s."""

from __future__ import annotations

import json

import numpy as np
import pytest

from simlora.errors import ConfigError
from simlora.workload.traces.reader import parse_trace
from simlora.workload.traces.table import TraceOptions, TraceTable


def row(stamp: object = 0, prompt: object = 600, output: object = 5, hash_ids: object = (0, 1)) -> str:
    record = {"timestamp": stamp, "input_length": prompt, "output_length": output}
    return json.dumps(record if hash_ids is None else {**record, "hash_ids": hash_ids})


def read(*rows: str, **options: object) -> TraceTable:
    return parse_trace("\n".join(rows), "m.jsonl", TraceOptions(**options))  # type: ignore[arg-type]


def test_stamps_are_milliseconds_and_ids_are_kept() -> None:
    trace = read(row(3000), "", row(4500, 512, 1, [0]))
    assert trace.format == "mooncake"
    assert trace.arrival_s.tolist() == [0.0, 1.5]
    assert (trace.prefix, trace.prefix_block_tokens) == (((0, 1), (0,)), 512)
    assert trace.where(1) == "m.jsonl:3"


def test_seconds_on_request() -> None:
    assert read(row(0), row(2), unit="s").arrival_s.tolist() == [0.0, 2.0]


def test_ids_of_64_bits_survive() -> None:
    assert read(row(hash_ids=[2**63 + 1, 2**64 - 1])).prefix == ((2**63 + 1, 2**64 - 1),)


def test_rows_without_ids_have_no_prefix() -> None:
    assert read(row(hash_ids=None), row(hash_ids=None)).prefix is None


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [row(), row(hash_ids=[0])],
            "m.jsonl:2: hash_ids: '1 ids': 2 ids, one per 512 of the 600 prompt tokens, rounded up",
        ),
        ([row(hash_ids=[0, -1])], "m.jsonl:1: hash_ids: [0, -1]: a list of whole numbers of at least 0"),
        ([row(hash_ids=[0, True])], "m.jsonl:1: hash_ids: [0, True]: a list of whole numbers of at least 0"),
        ([row(hash_ids="01")], "m.jsonl:1: hash_ids: '01': a list of whole numbers of at least 0"),
        ([row(), row(hash_ids=None)], "m.jsonl:2: hash_ids: None: this key is missing, though other rows have it"),
        ([row(), row(stamp=-1)], "m.jsonl:2: timestamp: -1: a time of at least 0"),
        ([row(), row(stamp="5")], "m.jsonl:2: timestamp: '5': a time of at least 0"),
        ([row(), row(stamp=float("nan"))], "m.jsonl:2: timestamp: nan: a time of at least 0"),
        ([row(), row(prompt=0)], "m.jsonl:2: input_length: 0: a whole number of tokens of at least 1"),
        ([row(), row(output=1.5)], "m.jsonl:2: output_length: 1.5: a whole number of tokens of at least 1"),
        ([row(), row(output=True)], "m.jsonl:2: output_length: True: a whole number of tokens of at least 1"),
        ([row(), row(output=2**31)], "m.jsonl:2: output_length: 2147483648: a whole number of tokens of at least 1"),
        (
            [row(), '{"timestamp": 5}'],
            "m.jsonl:2: input_length: None: this key is missing; found: timestamp",
        ),
        ([row(), "[1]"], "m.jsonl:2: row: '[1]': a JSON object with timestamp, input_length, output_length"),
    ],
)
def test_wrong_rows(rows: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(*rows)
    assert str(caught.value).startswith(message)


def test_a_broken_line_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        read(row(), '{"timestamp": 5, ')
    assert str(caught.value).startswith("m.jsonl:2: JSON: '{\"timestamp\": 5, ': valid JSON (")


def test_jitter_spreads_the_tick_keeps_the_order_and_is_seeded() -> None:
    rows = [row(3000 * tick, 512, index + 1, [index]) for index, tick in enumerate([0] * 9 + [1] * 11 + [3] * 10)]
    plain, spread = read(*rows), read(*rows, jitter=True, seed=4)
    assert (np.diff(spread.arrival_s) > 0).all()
    moved_s = spread.arrival_s - plain.arrival_s
    assert (moved_s >= 0).all() and (moved_s < 3.0).all()
    assert spread.output_tokens.tolist() == plain.output_tokens.tolist()
    assert spread.notes == ("jitter: 30 stamps (3 distinct) spread over 3 s each",)
    assert (read(*rows, jitter=True, seed=4).arrival_s == spread.arrival_s).all()
    assert (read(*rows, jitter=True, seed=5).arrival_s != spread.arrival_s).any()


def test_jitter_with_one_stamp_has_nothing_to_go_by() -> None:
    trace = read(row(), row(), jitter=True)
    assert trace.arrival_s.tolist() == [0.0, 0.0]
    assert trace.notes == ("jitter: all stamps are equal, nothing to spread",)


def test_an_adapter_key_may_be_named() -> None:
    rows = [row().replace("{", f'{{"model": {name}, ', 1) for name in ('"a"', "null", "7")]
    trace = read(*rows, adapter_column="model")
    assert trace.adapter is not None
    assert [trace.adapter.names[code] for code in trace.adapter.codes] == ["a", "", "7"]
    with pytest.raises(ConfigError, match=r"m\.jsonl:1: model: None: this key is missing"):
        read(row(), adapter_column="model")


def test_failed_rows_can_be_dropped() -> None:
    trace = read(row(0, output=0), row(1000), failures="drop")
    assert (len(trace), trace.prefix) == (1, ((0, 1),))
    assert trace.dropped[0].lines == (1,)
