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


def schedule(queue: WaitingQueue, admit: int, full: bool) -> list[int]:
    """An admission pass the way the engine makes it; see NaiveQueue.schedule."""
    admitted: list[int] = []
    head = queue.head(full)
    while head >= 0 and len(admitted) < admit:
        queue.pop(head)
        admitted.append(head)
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
    queue = WaitingQueue([number for _, number in operations], skipped_first)
    naive, active = NaiveQueue(skipped_first), {0}
    for index, (what, number) in enumerate(operations):
        if what == "arrive":
            queue.push(index)
            naive.waiting.append(request(index, number))
        elif what == "preempt":
            queue.push_preempted(index)
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
        assert list(queue) == [r.index for r in waiting]
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


NEVER = 1000


def take_seats(queue: WaitingQueue, seats: int, full_after: int) -> list[int]:
    """An admission pass that ends with the last seat: nobody behind is looked at. The slots are full from the start, or
    after so many admissions."""
    admitted: list[int] = []
    head = -1
    while queue.size and len(admitted) < seats:
        head = queue.head(len(admitted) >= full_after)
        if head < 0:
            break
        queue.pop(head)
        admitted.append(head)
    if queue.size and seats and len(admitted) >= full_after:
        queue.mark_skipped_before(head)
    return admitted


def take_seats_naively(naive: NaiveQueue, seats: int, full_after: int, active: set[int]) -> list[int]:
    admitted, passed = [], []
    while (naive.skipped or naive.waiting) and len(admitted) < seats:
        first = (naive.skipped or naive.waiting).popleft()
        if len(admitted) >= full_after and first.adapter not in active:
            passed.append(first)
        else:
            admitted.append(first.index)
    (naive.skipped if naive.skipped_first else naive.waiting).extendleft(reversed(passed))
    return admitted


@examples(400)
@given(
    st.lists(
        st.one_of(
            operation,
            st.tuples(st.just("arrive"), st.integers(0, ADAPTERS)),
            st.tuples(st.sampled_from(("seats", "seats filling", "seats full")), st.integers(0, 3)),
            st.tuples(st.just("preempt"), st.just(0)),
        ),
        max_size=40,
    ),
    st.booleans(),
)
def test_a_line_keeps_the_order_of_an_index(operations: list[tuple[str, int]], skipped_first: bool) -> None:
    """The twin is indexed after every operation; the queue only when it has to be. Those admitted last are preempted
    first, and may come back again and again."""
    adapters = [number for what, number in operations if what == "arrive"]
    queue, twin = (WaitingQueue(adapters, skipped_first) for _ in range(2))
    naive, active, arrived = NaiveQueue(skipped_first), {0}, 0
    running: list[int] = []
    twin._index()
    for what, number in operations:
        if what == "arrive":
            queue.push(arrived), twin.push(arrived)
            naive.waiting.append(request(arrived, number))
            arrived += 1
        elif what == "preempt" and running:
            victim = running.pop()
            queue.push_preempted(victim), twin.push_preempted(victim)
            naive.waiting.appendleft(request(victim, adapters[victim]))
        elif what == "activate" and number not in active:
            active.add(number)
            queue.activate(number), twin.activate(number)
        elif what == "deactivate" and number in active:
            active.remove(number)
            queue.deactivate(number), twin.deactivate(number)
        elif what.startswith("schedule"):
            full = what == "schedule full"
            admitted = naive.schedule(number, active if full else None)
            assert schedule(queue, number, full) == schedule(twin, number, full) == admitted
            running += admitted
        elif what.startswith("seats"):
            full_after = {"seats": NEVER, "seats filling": 1, "seats full": 0}[what]
            admitted = take_seats_naively(naive, number, full_after, active)
            assert take_seats(queue, number, full_after) == take_seats(twin, number, full_after) == admitted
            running += admitted
        twin._index()
        assert list(queue) == list(twin) == naive.order()
        assert queue.size == twin.size
    assert queue.active_count == twin.active_count


def test_a_preempted_request_goes_in_front_of_arrivals_but_behind_skipped_ones() -> None:
    queue = WaitingQueue([1, 2, 3, 4, 4])
    queue.push(0)
    queue.push(1)
    queue.mark_skipped_before(queue.head(active_only=True))
    queue.push(2)
    queue.push_preempted(3)
    queue.push_preempted(4)
    assert list(queue) == [0, 1, 4, 3, 2]


def test_a_preempted_request_that_was_skipped_stays_in_front_of_later_preempted_ones() -> None:
    queue = WaitingQueue([1, 2])
    queue.push_preempted(0)
    queue.mark_skipped_before(-1)
    queue.push_preempted(1)
    assert list(queue) == [0, 1]


def test_a_request_that_comes_back_has_its_new_place() -> None:
    """Requests 0 and 2 are admitted past request 1; request 2 comes back and stays at the head, then 0 comes back."""
    queue = WaitingQueue([0, 1, 0])
    for arrival in range(3):
        queue.push(arrival)
    assert take_seats(queue, 2, full_after=0) == [0, 2]
    queue.push_preempted(2)
    assert schedule(queue, 0, full=True) == []
    queue.push_preempted(0)
    assert list(queue) == [1, 0, 2]


def test_only_active_adapters_are_offered_when_slots_are_full() -> None:
    queue = WaitingQueue([1, 2, 0])
    for arrival in range(3):
        queue.push(arrival)
    assert queue.head(active_only=True) == 2
    queue.activate(2)
    assert queue.head(active_only=True) == 1
    queue.deactivate(2)
    assert queue.head(active_only=True) == 2
    queue.pop(2)
    assert queue.head(active_only=True) == -1
    assert queue.head(active_only=False) == 0


def test_pass_over_an_arrival_also_passes_over_what_came_before() -> None:
    queue = WaitingQueue([1, 2, 3, 4])
    for arrival in range(3):
        queue.push(arrival)
    queue.mark_skipped_through(1)
    queue.push_preempted(3)
    assert list(queue) == [0, 1, 3, 2]


@pytest.mark.parametrize("full", [False, True])
def test_the_queue_forgets_what_it_served(full: bool) -> None:
    """Long runs ask only one of the two questions (whether slots are full), yet feed both heaps."""
    queue = WaitingQueue([0] * 3001)
    queue.push(3000)
    queue._index()  # from now on somebody always waits, so that it stays indexed
    for index in range(3000):
        queue.push(index)
        head = queue.head(active_only=full)
        assert head >= 0
        queue.pop(head)
    assert queue._indexed
    assert len(queue._heads) + len(queue._active_heads) < 1000
