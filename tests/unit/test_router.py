"""Routing policies on views made by hand."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[1]))

from support.cases import examples

from simlora.cluster.router import LeastRequests, LoraAffinity, RoundRobin, Router, Send
from simlora.engines.request import Request
from simlora.engines.view import View


def request(index: int = 0, adapter: int = 0) -> Request:
    return Request(index, 0.0, adapter, 8 if adapter else 0, 10, 10)


def view(
    outstanding: int = 0, waiting: int = 0, kv_usage: float = 0.0, adapters: tuple[int, ...] = (), max_loras: int = 2
) -> View:
    return View(outstanding - waiting, waiting, kv_usage, frozenset(adapters), max_loras, outstanding)


def chosen(router: Router, views: list[View], **of_request: int) -> int:
    decision = router.choose(request(**of_request), views, 0.0)
    assert isinstance(decision, Send)
    return decision.replica


def test_round_robin_takes_turns_and_needs_no_views() -> None:
    router = RoundRobin(3)
    assert not router.needs_views
    assert [chosen(router, []) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_least_requests_takes_the_shortest() -> None:
    assert chosen(LeastRequests(), [view(3), view(1), view(2)]) == 1


def test_least_requests_takes_turns_between_equals() -> None:
    router = LeastRequests()
    picks = Counter(chosen(router, [view(2), view(1), view(1), view(1)]) for _ in range(300))
    assert picks == {1: 100, 2: 100, 3: 100}


def test_affinity_prefers_the_replica_that_runs_the_adapter() -> None:
    views = [view(), view(adapters=(5,)), view(adapters=(4, 6))]
    assert chosen(LoraAffinity(), views, adapter=5) == 1


def test_affinity_prefers_a_free_slot_to_a_full_replica() -> None:
    views = [view(adapters=(1, 2)), view(adapters=(3,)), view(adapters=(4, 6))]
    assert chosen(LoraAffinity(), views, adapter=5) == 1


def test_affinity_does_not_outweigh_a_long_queue_and_full_memory() -> None:
    views = [view(outstanding=9, waiting=9, kv_usage=0.9, adapters=(5,)), view(adapters=(1, 2))]
    assert chosen(LoraAffinity(), views, adapter=5) == 1
    assert chosen(LoraAffinity(lora_weight=3.0), views, adapter=5) == 0


def test_affinity_ignores_adapters_of_a_base_request() -> None:
    views = [view(adapters=(5,)), view(adapters=(1, 2), kv_usage=0.1)]
    assert chosen(LoraAffinity(), views, adapter=0) == 0


def test_affinity_weighs_queue_and_memory() -> None:
    views = [view(waiting=4, kv_usage=0.1), view(waiting=0, kv_usage=0.5), view(waiting=2, kv_usage=0.0)]
    assert chosen(LoraAffinity(), views) == 1  # 0 + 0.9, 1 + 0.5, 0.5 + 1
    assert chosen(LoraAffinity(queue_weight=0.0), views) == 2


def test_affinity_spreads_equals_by_request_number() -> None:
    views = [view(), view(), view(), view()]
    picks = [chosen(LoraAffinity(), views, index=i) for i in range(4000)]
    assert picks == [chosen(LoraAffinity(), views, index=i) for i in range(4000)]
    assert all(900 < count < 1100 for count in Counter(picks).values())


views_strategy = st.lists(
    st.builds(
        view,
        outstanding=st.integers(0, 50),
        waiting=st.integers(0, 20),
        kv_usage=st.sampled_from((0.0, 0.25, 0.5, 1.0)),
        adapters=st.lists(st.integers(1, 5), max_size=3).map(tuple),
        max_loras=st.integers(0, 3),
    ),
    min_size=1,
    max_size=5,
)


def score(adapter: int, one: View, views: list[View]) -> float:
    """The documented score, written out."""
    waiting = [v.waiting for v in views]
    queue = 1.0 if max(waiting) == min(waiting) else (max(waiting) - one.waiting) / (max(waiting) - min(waiting))
    lora = 1.0 if not adapter or adapter in one.adapters else 0.8 if len(one.adapters) < one.max_loras else 0.0
    return queue + (1.0 - one.kv_usage) + lora


@examples(150)
@given(views_strategy, st.integers(0, 5), st.integers(0, 1000))
def test_the_choice_is_a_best_one(views: list[View], adapter: int, index: int) -> None:
    replica = chosen(LoraAffinity(), views, adapter=adapter, index=index)
    scores = [score(adapter, v, views) for v in views]
    assert scores[replica] == max(scores)
    least = chosen(LeastRequests(), views, adapter=adapter)
    assert views[least].outstanding == min(v.outstanding for v in views)
