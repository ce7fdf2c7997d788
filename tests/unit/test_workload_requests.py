"""A scenario's requests: independent streams, prefixes, and nothing clipped in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simlora.errors import ConfigError
from simlora.scenario.load import scenario_from_dict
from simlora.scenario.root import Scenario
from simlora.workload.adapter_table import build_adapters
from simlora.workload.request_table import RequestTable, fit_context, share_ids
from simlora.workload.requests import build_requests

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:17:03.0000000,100,10\r\n"
    "2023-11-16 18:17:03.5000000,900,200\r\n"
    "2023-11-16 18:17:05.0000000,1024,5\r\n"
    "2023-11-16 18:17:07.0000000,30,2"
)


def scenario(workload: dict[str, Any] | None = None, folder: Path | None = None, **changes: Any) -> Scenario:
    data: dict[str, Any] = {
        "model": "llama-3.1-8b",
        "engine": {"max_loras": 4, "max_cpu_loras": 8, "max_model_len": 8192},
        "adapters": {"count": 20, "popularity": {"kind": "zipf", "alpha": 1.0}},
        "workload": {"arrivals": {"kind": "poisson", "rate_rps": 5.0}, "duration_s": 100.0, **(workload or {})},
    }
    for key, value in changes.items():
        data[key] = {**data.get(key, {}), **value} if isinstance(value, dict) else value
    return scenario_from_dict(data, folder=folder)


def build(workload: dict[str, Any] | None = None, folder: Path | None = None, **changes: Any) -> RequestTable:
    built = scenario(workload, folder, **changes)
    return build_requests(built, build_adapters(built))


def replay(path: Path, trace_format: str, max_model_len: int = 8192, **workload: Any) -> RequestTable:
    trace = {"path": path.name, "format": trace_format}
    data = {
        "model": "llama-3.1-8b",
        "engine": {"max_loras": 4, "max_cpu_loras": 8, "max_model_len": max_model_len},
        "adapters": {"count": 20},
        "workload": {"trace": trace, **workload},
    }
    built = scenario_from_dict(data, folder=path.parent)
    return build_requests(built, build_adapters(built))


def test_a_synthetic_table_is_well_formed() -> None:
    table = build()
    assert len(table) == len(table.adapter) == len(table.prompt_tokens) == len(table.output_tokens) > 400
    assert (table.arrival_s.dtype, table.adapter.dtype) == (np.float64, np.int32)
    assert (table.prompt_tokens.dtype, table.output_tokens.dtype) == (np.int32, np.int32)
    assert (np.diff(table.arrival_s) >= 0).all() and table.arrival_s[-1] < 100.0
    assert table.adapter.min() >= 1 and table.adapter.max() <= 20
    assert min(table.prompt_tokens.min(), table.output_tokens.min()) >= 1
    assert (table.prefix, table.notes) == (None, ())


def test_equal_seeds_give_equal_requests_and_others_do_not() -> None:
    first, again, other = build(seed=7), build(seed=7), build(seed=8)
    for column in ("arrival_s", "adapter", "prompt_tokens", "output_tokens"):
        assert (getattr(first, column) == getattr(again, column)).all()
        assert getattr(first, column)[:50].tolist() != getattr(other, column)[:50].tolist()


UNCHANGED = {
    "other prompts": ({"prompt_tokens": {"kind": "uniform", "max": 99}}, {}, "prompt_tokens"),
    "other outputs": ({"output_tokens": {"kind": "fixed", "value": 5}}, {}, "output_tokens"),
    "other popularity": ({}, {"adapters": {"count": 50}}, "adapter"),
    "a base model": ({}, {"adapters": {"base_fraction": 0.5}}, "adapter"),
    "prefixes": ({"prefix": {"kind": "share", "fraction": 0.5}}, {}, None),
    "other arrivals": ({"arrivals": {"kind": "deterministic", "rate_rps": 5.5}}, {}, "arrival_s"),
}


@pytest.mark.parametrize(("workload", "changes", "changed"), UNCHANGED.values(), ids=list(UNCHANGED))
def test_one_change_leaves_every_other_column_as_it_was(
    workload: dict[str, Any], changes: dict[str, Any], changed: str | None
) -> None:
    before, after = build(), build(workload, **changes)
    size = min(len(before), len(after))
    for column in ("arrival_s", "adapter", "prompt_tokens", "output_tokens"):
        same = getattr(before, column)[:size].tolist() == getattr(after, column)[:size].tolist()
        assert same == (column != changed), column


def test_num_requests() -> None:
    assert len(build({"duration_s": None, "num_requests": 123})) == 123


def test_empirical_lengths_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "lengths.csv").write_text("prompt, out\n10,7\n20,9\n")
    lengths = {"kind": "empirical", "path": "lengths.csv", "column": "Out"}
    table = build({"output_tokens": lengths}, tmp_path)
    assert set(table.output_tokens.tolist()) == {7, 9}
    with pytest.raises(ConfigError) as caught:
        build({"output_tokens": {**lengths, "column": "nope"}}, tmp_path)
    assert str(caught.value) == "lengths.csv:1: nope: 'prompt,out': missing from the header"


def test_no_arrival_is_an_error() -> None:
    with pytest.raises(ConfigError) as caught:
        build({"arrivals": {"kind": "poisson", "rate_rps": 1e-6}, "duration_s": 0.5})
    assert str(caught.value) == "<arguments>: workload.duration_s: 0.5: long enough for a request to arrive"


def test_fit_context_drops_prompts_clips_outputs_and_says_both() -> None:
    prompt = np.array([10, 90, 99, 100, 300], dtype=np.int32)
    output = np.array([20, 11, 1, 1, 1], dtype=np.int32)
    keep, fitted, notes = fit_context(prompt, output, 100)
    assert keep.tolist() == [True, True, True, False, False]
    assert fitted[keep].tolist() == [20, 10, 1]
    assert notes == (
        "2 of 5 requests dropped: prompt not below max_model_len 100",
        "1 of 5 outputs clipped to max_model_len 100, 1 tokens fewer",
    )


def test_fit_context_says_nothing_when_all_fits() -> None:
    keep, fitted, notes = fit_context(np.array([10], np.int32), np.array([90], np.int32), 100)
    assert (keep.tolist(), fitted.tolist(), notes) == ([True], [90], ())


def test_a_replayed_trace_notes_all_that_was_done_to_it(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(AZURE, newline="")
    table = replay(path, "azure", max_model_len=1024, scale_rate=2.0, limit=3)
    assert table.arrival_s.tolist() == [0.0, 0.25]
    assert table.prompt_tokens.tolist() == [100, 900]
    assert table.output_tokens.tolist() == [10, 124]
    assert table.notes == (
        "azure.csv: scale_rate 2: 0.75 -> 1.5 req/s",
        "azure.csv: the first 3 of 4 requests are kept",
        "azure.csv: adapters: the trace names none; drawn by popularity from 20, seed 1",
        "1 of 3 requests dropped: prompt not below max_model_len 1024",
        "1 of 3 outputs clipped to max_model_len 1024, 76 tokens fewer",
    )


def test_duration_counts_after_scaling(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(AZURE, newline="")
    assert len(replay(path, "azure", duration_s=2.0)) == 2
    assert len(replay(path, "azure", duration_s=2.0, scale_rate=2.0)) == 4 - 1


def test_a_trace_without_a_request_that_fits_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(AZURE, newline="")
    with pytest.raises(ConfigError) as caught:
        replay(path, "azure", max_model_len=30)
    allowed = "above the shortest prompt, 30 tokens: no request fits"
    assert str(caught.value) == f"<arguments>: engine.max_model_len: 30: {allowed}"


def test_a_duration_before_the_first_arrival_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "late.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n5,1,1\n6,1,1\n")
    with pytest.raises(ConfigError) as caught:
        replay(path, "csv", duration_s=2.0)
    assert str(caught.value) == "late.csv: workload.duration_s: 2.0: above 5 s, when the first request arrives"


def test_a_shared_prefix_covers_its_fraction_in_whole_blocks() -> None:
    adapter = np.array([1, 2, 1, 0], dtype=np.int32)
    prompt = np.array([100, 100, 33, 15], dtype=np.int32)
    first, second, third, base = share_ids(adapter, prompt, 0.5, 16)
    assert (len(first), len(second), len(third), len(base)) == (3, 3, 1, 0)
    assert third == first[:1]
    assert not set(first) & set(second)


def test_a_fraction_is_not_rounded_down_twice() -> None:
    assert len(share_ids(np.zeros(1, np.int32), np.array([100], np.int32), 0.57, 57)[0]) == 1


def test_prefix_share_uses_the_engines_blocks_and_says_so() -> None:
    table = build({"prefix": {"kind": "share", "fraction": 0.25}}, engine={"block_size": 32})
    assert table.prefix is not None and table.prefix_block_tokens == 32
    expected = (table.prompt_tokens * 0.25 // 32).astype(int).tolist()
    assert [len(ids) for ids in table.prefix] == expected
    assert table.notes == ("prefix: 0.25 of each prompt is common to its adapter, in whole blocks of 32 tokens",)


def test_mooncake_prefixes_are_kept_only_on_request_and_follow_dropped_rows(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    rows = [(0, 600, 5, [7, 8]), (1000, 5000, 5, list(range(10))), (2000, 512, 5, [7])]
    keys = ("timestamp", "input_length", "output_length", "hash_ids")
    path.write_text("\n".join(str(dict(zip(keys, row, strict=True))).replace("'", '"') for row in rows))
    table = replay(path, "mooncake", max_model_len=4096, prefix={"kind": "trace"})
    assert (table.prefix, table.prefix_block_tokens) == (((7, 8), (7,)), 512)
    assert replay(path, "mooncake").prefix is None
