"""The adapter table: ranks by largest remainder, assigned apart from popularity unless asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simlora.scenario.load import scenario_from_dict
from simlora.scenario.root import Scenario
from simlora.workload.adapter_table import build_adapters


def scenario(seed: int = 1, **adapters: Any) -> Scenario:
    engine = {"max_loras": 4, "max_lora_rank": 64, "max_cpu_loras": 8}
    return scenario_from_dict({"model": "llama-3.1-8b", "seed": seed, "engine": engine, "adapters": adapters})


MIX = {8: 0.4, 16: 0.3, 32: 0.2, 64: 0.1}


def test_ranks_have_the_stated_counts_and_the_base_model_has_none() -> None:
    table = build_adapters(scenario(count=1000, ranks=MIX))
    assert table.rank.dtype == np.int32 and len(table.rank) == 1001
    assert table.rank[0] == 0
    assert {rank: int((table.rank == rank).sum()) for rank in MIX} == {8: 400, 16: 300, 32: 200, 64: 100}


def test_largest_remainder_gives_every_adapter_one_rank() -> None:
    table = build_adapters(scenario(count=7, ranks=MIX))
    assert len(table.rank) == 8 and (table.rank[1:] > 0).all()


def test_ranks_do_not_depend_on_popularity() -> None:
    uniform = build_adapters(scenario(count=100, ranks=MIX))
    zipf = build_adapters(scenario(count=100, ranks=MIX, popularity={"kind": "zipf", "alpha": 1.0}))
    assert uniform.rank.tolist() == zipf.rank.tolist()
    correlation = np.corrcoef(zipf.rank[1:], np.arange(100))[0, 1]
    assert abs(correlation) < 0.4


def test_ranks_do_not_depend_on_the_order_in_which_they_are_written() -> None:
    forwards = build_adapters(scenario(count=50, ranks=MIX))
    backwards = build_adapters(scenario(count=50, ranks=dict(reversed(MIX.items()))))
    assert forwards.rank.tolist() == backwards.rank.tolist()


def test_another_seed_permutes_ranks() -> None:
    first, second = build_adapters(scenario(1, count=100, ranks=MIX)), build_adapters(scenario(2, count=100, ranks=MIX))
    assert first.rank.tolist() != second.rank.tolist()
    assert sorted(first.rank) == sorted(second.rank)


@pytest.mark.parametrize(("order", "falling"), [("largest-first", True), ("smallest-first", False)])
def test_rank_by_popularity(order: str, falling: bool) -> None:
    table = build_adapters(
        scenario(count=20, ranks=MIX, rank_by_popularity=order, popularity={"kind": "power", "alpha": 2.0})
    )
    by_popularity = table.rank[1:][np.argsort(-table.probability[1:])].tolist()
    assert by_popularity == sorted(by_popularity, reverse=falling)


def test_probabilities_include_the_base_model() -> None:
    table = build_adapters(scenario(count=4, base_fraction=0.2))
    assert table.probability.tolist() == pytest.approx([0.2, 0.2, 0.2, 0.2, 0.2])


def test_classes_and_explicit_rates_set_the_count() -> None:
    classes = [{"count": 1, "share": 0.5}, {"count": 9, "share": 0.5}]
    table = build_adapters(scenario(popularity={"kind": "classes", "classes": classes}))
    assert table.count == 10
    assert table.probability.tolist() == pytest.approx([0.0, 0.5, *[0.5 / 9] * 9])
    table = build_adapters(scenario(popularity={"kind": "explicit", "rates_rps": [1.0, 3.0]}))
    assert table.probability.tolist() == [0.0, 0.25, 0.75]


def test_without_lora_everything_is_base() -> None:
    plain = scenario_from_dict({"model": "llama-3.1-8b", "engine": {"enable_lora": False}})
    table = build_adapters(plain)
    assert (table.count, table.rank.tolist(), table.probability.tolist()) == (0, [0], [1.0])
