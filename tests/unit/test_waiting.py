"""WaitingQueue against the queues that it stands for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[1]))

from support.cases import examples
from support.naive_queue import NaiveQueue

from simlora.engines.request import Request
from simlora.engines.vllm.waiting import WaitingQueue

ADAPTERS = 4


def request(index: int, adapter: int) -> Request:
    return Request(index, 0.0, adapter, 8 if adapter else 0, 1, 1)


def order(queue: WaitingQueue) -> list[int]:
    return [r.index for r in queue]


def schedule(queue: WaitingQueue, admit: int, full: bool) -> list[int]:
    """An admission pass the way the engine makes it; see NaiveQueue.schedule."""
    admitted: list[int] = []
    head = queue.head(full)
    while head is not None and len(admitted) < admit:
        queue.pop(head)
        admitted.append(head.index)
        head = queue.head(full)
    if queue.size and full:
        queue.mark_skipped_before(head)
    return admitted


operation = st.one_of(
    st.tuples(st.just("arrive"), st.integers(0, ADAPTERS)),
    st.tuples(st.just("activate"), st.integers(1, ADAPTERS)),
    st.tuples(st.just("deactivate"), st.integers(1, ADAPTERS)),
    st.tuples(st.just("schedule"), st.integers(0, 3)),
    st.tuples(st.just("schedule full"), st.integers(0, 3)),
)
preemption = st.tuples(st.just("preempt"), st.integers(0, ADAPTERS))


def play(operations: list[tuple[str, int]], skipped_first: bool) -> None:
    queue, naive, active = WaitingQueue(skipped_first), NaiveQueue(skipped_first), {0}
    for index, (what, number) in enumerate(operations):
        if what == "arrive":
            queue.push(request(index, number))
            naive.waiting.append(request(index, number))
        elif what == "preempt":
            queue.push_preempted(request(index, number))
            naive.waiting.appendleft(request(index, number))
        elif what == "activate" and number not in active:
            active.add(number)
            queue.activate(number)
        elif what == "deactivate" and number in active:
            active.remove(number)
            queue.deactivate(number)
        elif what.startswith("schedule"):
            full = what == "schedule full"
            assert schedule(queue, number, full) == naive.schedule(number, active if full else None)
        waiting = [*naive.skipped, *naive.waiting]
        assert order(queue) == [r.index for r in waiting]
        assert queue.size == len(waiting)
        assert queue.active_count == sum(r.adapter in active for r in waiting)


@examples(200)
@given(st.lists(operation, max_size=40), st.booleans())
def test_arrivals_keep_the_order_of_the_queues(operations: list[tuple[str, int]], skipped_first: bool) -> None:
    play(operations, skipped_first)


@examples(200)
@given(st.lists(st.one_of(operation, preemption), max_size=40), st.booleans())
def test_preemptions_keep_the_order_of_the_queues(operations: list[tuple[str, int]], skipped_first: bool) -> None:
    play(operations, skipped_first)


def test_a_preempted_request_goes_in_front_of_arrivals_but_behind_skipped_ones() -> None:
    queue = WaitingQueue()
    queue.push(request(0, 1))
    queue.push(request(1, 2))
    queue.mark_skipped_before(None)
    queue.push(request(2, 3))
    queue.push_preempted(request(3, 4))
    queue.push_preempted(request(4, 4))
    assert order(queue) == [0, 1, 4, 3, 2]


def test_a_preempted_request_that_was_skipped_stays_in_front_of_later_preempted_ones() -> None:
    queue = WaitingQueue()
    queue.push_preempted(request(0, 1))
    queue.mark_skipped_before(None)
    queue.push_preempted(request(1, 2))
    assert order(queue) == [0, 1]


def test_only_active_adapters_are_offered_when_slots_are_full() -> None:
    queue = WaitingQueue()
    for index, adapter in enumerate((1, 2, 0)):
        queue.push(request(index, adapter))
    first = queue.head(active_only=True)
    assert first is not None and first.index == 2
    queue.activate(2)
    first = queue.head(active_only=True)
    assert first is not None and first.index == 1
    queue.deactivate(2)
    first = queue.head(active_only=True)
    assert first is not None and first.index == 2
    queue.pop(first)
    assert queue.head(active_only=True) is None
    first = queue.head(active_only=False)
    assert first is not None and first.index == 0


def test_pass_over_an_arrival_also_passes_over_what_came_before() -> None:
    queue = WaitingQueue()
    arrivals = [request(index, 1 + index) for index in range(3)]
    for arrival in arrivals:
        queue.push(arrival)
    queue.mark_skipped_through(arrivals[1])
    queue.push_preempted(request(3, 4))
    assert order(queue) == [0, 1, 3, 2]


@pytest.mark.parametrize("full", [False, True])
def test_the_queue_forgets_what_it_served(full: bool) -> None:
    """Long runs ask only one of the two questions (whether slots are full), yet feed both heaps."""
    queue = WaitingQueue()
    for index in range(3000):
        queue.push(request(index, 0))
        head = queue.head(active_only=full)
        assert head is not None
        queue.pop(head)
    assert len(queue._heads) + len(queue._active_heads) < 1000
