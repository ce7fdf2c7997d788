"""Which adapter a trace's request gets: named, drawn, hashed, in turn."""

from __future__ import annotations

import numpy as np
import pytest

from simlora.errors import ConfigError
from simlora.workload.adapter_table import AdapterTable
from simlora.workload.traces.reader import parse_trace
from simlora.workload.traces.replay import adapters_from_trace, map_adapters
from simlora.workload.traces.table import TraceOptions, TraceTable


def csv(rows: list[str], columns: str = "arrival_s,adapter,prompt_tokens,output_tokens") -> TraceTable:
    return parse_trace("\n".join([columns, *rows]), "t.csv", TraceOptions())


def named(*labels: str) -> TraceTable:
    return csv([f"{index},{label},5,5" for index, label in enumerate(labels)])


def unnamed(size: int) -> TraceTable:
    return named(*[""] * size)


def table(count: int, base_fraction: float = 0.0, names: tuple[str, ...] | None = None) -> AdapterTable:
    share = (1.0 - base_fraction) / count
    return AdapterTable(
        count, np.full(count + 1, 16, dtype=np.int32), np.array([base_fraction, *[share] * count]), names
    )


def test_numbers_are_ids_and_blank_or_zero_is_the_base_model() -> None:
    ids, note = map_adapters(named("3", "", "0", "1.0", " 3 "), table(3), "sample", 1)
    assert ids.tolist() == [3, 0, 0, 1, 3]
    assert note == "adapters: 2 distinct, as the trace names them"


def test_names_are_numbered_by_first_appearance() -> None:
    ids, note = map_adapters(named("movie", "", "consumer", "movie"), table(3), "sample", 1)
    assert ids.tolist() == [1, 0, 2, 1]
    assert note == "adapters: 2 distinct, as the trace names them, numbered by first appearance"


def test_names_are_looked_up_where_adapters_have_names() -> None:
    ids, _ = map_adapters(named("b", "a", ""), table(2, names=("a", "b")), "sample", 1)
    assert ids.tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    ("trace", "adapters", "message"),
    [
        (named("1", "2", "7"), table(3), "t.csv:4: adapter: '7': one of the 3 adapters"),
        (named("a", "b", "c"), table(2), "t.csv:4: adapter: 'c': one of the 2 adapters"),
        (named("a", "z"), table(2, names=("a", "b")), "t.csv:3: adapter: 'z': one of the 2 adapters"),
        (named("1", "-1"), table(1), "t.csv:3: adapter: '-1': one of the 1 adapters"),
    ],
)
def test_an_unknown_adapter_is_an_error_with_its_line(trace: TraceTable, adapters: AdapterTable, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        map_adapters(trace, adapters, "sample", 1)
    assert str(caught.value) == f"{message} (adapters.count), or empty or 0 for the base model"


def test_sampling_is_seeded_recorded_and_fair() -> None:
    trace = unnamed(20_000)
    ids, note = map_adapters(trace, table(4, 0.2), "sample", 5)
    assert (ids == map_adapters(trace, table(4, 0.2), "sample", 5)[0]).all()
    assert (ids != map_adapters(trace, table(4, 0.2), "sample", 6)[0]).any()
    assert (np.abs(np.bincount(ids) - 4000) < 4 * np.sqrt(4000)).all()
    assert note == "adapters: the trace names none; drawn by popularity from 4, seed 5"


def test_round_robin_takes_turns_and_leaves_the_base_model_its_share() -> None:
    assert map_adapters(unnamed(5), table(3), "round-robin", 1)[0].tolist() == [1, 2, 3, 1, 2]
    ids, _ = map_adapters(unnamed(10_000), table(3, 0.5), "round-robin", 1)
    assert abs(np.mean(ids == 0) - 0.5) < 4 * np.sqrt(0.25 / 10_000)
    used = ids[ids > 0]
    assert used.tolist() == [index % 3 + 1 for index in range(len(used))]


def test_hash_keeps_a_tenant_on_one_adapter() -> None:
    rows = [f"{index},{5 + index},5,tenant{index % 300}" for index in range(3000)]
    trace = csv(rows, "arrival_s,prompt_tokens,output_tokens,tenant")
    ids, note = map_adapters(trace, table(4), "hash", 1)
    assert ids[:300].tolist() == ids[300:600].tolist()
    assert set(ids.tolist()) == {1, 2, 3, 4}
    assert note == "adapters: the trace names none; 300 sessions or tenants hashed onto 4 by popularity, seed 1"
    assert (map_adapters(trace, table(4), "hash", 2)[0] != ids).any()


def test_hash_without_tenants_hashes_rows_by_popularity() -> None:
    ids, note = map_adapters(unnamed(20_000), table(2, 0.5), "hash", 1)
    counts = np.bincount(ids)
    assert (np.abs(counts - [10_000, 5_000, 5_000]) < 5 * np.sqrt(counts)).all()
    assert "row numbers hashed onto 2" in note


def test_an_unknown_rule_is_an_error() -> None:
    with pytest.raises(ConfigError) as caught:
        map_adapters(unnamed(2), table(2), "random", 1)
    assert str(caught.value) == "t.csv: adapter_rule: 'random': one of sample, hash, round-robin"


def test_without_adapters_every_request_is_base() -> None:
    none = AdapterTable(0, np.zeros(1, dtype=np.int32), np.ones(1))
    for rule in ("sample", "hash", "round-robin"):
        assert map_adapters(unnamed(5), none, rule, 1)[0].tolist() == [0] * 5


RUN = "arrival_s,adapter,rank,prompt_tokens,output_tokens"


def test_a_recorded_run_describes_its_own_adapters() -> None:
    trace = csv(["0,3,64,5,5", "1,0,0,5,5", "2,1,8,5,5", "3,3,64,5,5"], RUN)
    own = adapters_from_trace(trace)
    assert (own.count, own.rank.tolist(), own.names) == (3, [0, 8, 8, 64], None)
    assert own.probability.tolist() == [0.25, 0.25, 0.0, 0.5]
    assert map_adapters(trace, own, "sample", 1)[0].tolist() == [3, 0, 1, 3]


def test_recorded_names_are_kept() -> None:
    trace = named("movie", "", "consumer")
    own = adapters_from_trace(trace, default_rank=16)
    assert (own.names, own.rank.tolist()) == (("movie", "consumer"), [0, 16, 16])
    assert map_adapters(trace, own, "sample", 1)[0].tolist() == [1, 0, 2]


def test_a_base_only_recording_has_no_adapters() -> None:
    own = adapters_from_trace(csv(["0,,,5,5", "1,0,0,5,5"], RUN))
    assert (own.count, own.rank.tolist(), own.probability.tolist()) == (0, [0], [1.0])


def test_ranks_that_contradict_each_other_or_are_missing_are_errors() -> None:
    with pytest.raises(ConfigError) as caught:
        adapters_from_trace(csv(["0,1,8,5,5", "1,2,16,5,5", "2,1,16,5,5"], RUN))
    assert str(caught.value) == "t.csv:4: rank: 16: 8, the rank of adapter 1 in an earlier row"
    with pytest.raises(ConfigError) as caught:
        adapters_from_trace(named("1"))
    assert str(caught.value) == "t.csv: rank: None: missing: the trace names adapters, but no ranks"
