"""Copies in flight: sharing, single flight, and giving up."""

from __future__ import annotations

import pytest

from simlora.memory.copies import Completion, CopyEngine, Stage

GB = 1e9


def engine() -> CopyEngine:
    return CopyEngine({"h2d": 10 * GB, "disk": 1 * GB, "remote": 0.1 * GB})


def arrivals(copies: CopyEngine) -> dict[int, float]:
    """Run to the end by events."""
    ends: dict[int, float] = {}
    while (event := copies.next_event_s()) is not None:
        ends.update({done.adapter: done.end_s for done in copies.advance_to(event)})
    return ends


def test_a_copy_alone_takes_latency_and_bytes_over_bandwidth() -> None:
    copies = engine()
    copies.start(1, [Stage("remote", 0.1 * GB, 0.5), Stage("disk", 0.1 * GB), Stage("h2d", 0.1 * GB)], 2.0)
    assert copies.next_event_s() == 2.5
    assert copies.advance_to(3.0) == []
    assert arrivals(copies) == {1: pytest.approx(2.0 + 0.5 + 1.0 + 0.1 + 0.01)}
    assert len(copies) == 0 and copies.next_event_s() is None


def test_copies_on_one_link_share_it() -> None:
    copies = engine()
    copies.start(1, [Stage("h2d", 10 * GB)], 0.0)
    copies.start(2, [Stage("h2d", 10 * GB)], 0.5)
    assert arrivals(copies) == {1: pytest.approx(1.5), 2: pytest.approx(2.0)}


def test_other_links_are_not_slowed() -> None:
    copies = engine()
    copies.start(1, [Stage("disk", 1 * GB)], 0.0)
    copies.start(2, [Stage("h2d", 10 * GB)], 0.0)
    assert arrivals(copies) == {1: pytest.approx(1.0), 2: pytest.approx(1.0)}


def test_an_adapter_is_copied_once_for_all_who_want_it() -> None:
    copies = engine()
    assert copies.start(1, [Stage("h2d", 10 * GB)], 0.0)
    assert not copies.start(1, [Stage("h2d", 10 * GB)], 0.4)
    assert len(copies) == 1
    assert arrivals(copies) == {1: pytest.approx(1.0)}
    assert copies.start(1, [Stage("h2d", 10 * GB)], 5.0)


def test_a_cancelled_copy_is_gone() -> None:
    copies = engine()
    copies.start(1, [Stage("h2d", 10 * GB)], 0.0)
    assert copies.cancel(1, 0.5)
    assert len(copies) == 0 and copies.next_event_s() is None
    assert not copies.cancel(1, 0.6)


def test_a_cancelled_copy_leaves_the_link_to_the_others() -> None:
    copies = engine()
    for adapter in (1, 2):
        copies.start(adapter, [Stage("h2d", 10 * GB)], 0.0)
    copies.cancel(1, 1.0)  # each has 5 GB by then
    assert arrivals(copies) == {2: pytest.approx(1.5)}


def test_copies_can_be_given_up_at_any_stage() -> None:
    copies = engine()
    copies.start(1, [Stage("h2d", 10 * GB)], 0.0)
    copies.start(2, [Stage("remote", 1 * GB, 10.0), Stage("h2d", GB)], 0.0)
    copies.start(3, [Stage("disk", 10 * GB)], 0.0)
    assert all(copies.cancel(adapter, 0.5) for adapter in (1, 2, 3))
    assert len(copies) == 0 and copies.next_event_s() is None
    copies.start(1, [Stage("h2d", 10 * GB)], 20.0)
    assert arrivals(copies) == {1: pytest.approx(21.0)}


def test_what_arrived_before_a_cancel_has_arrived() -> None:
    copies = engine()
    copies.start(1, [Stage("h2d", 10 * GB)], 0.0)
    assert not copies.cancel(1, 2.0)
    assert copies.next_event_s() == 2.0
    assert copies.advance_to(2.0) == [Completion(1, 1.0, 0.0)]


def test_an_empty_copy_arrives_at_once() -> None:
    copies = engine()
    copies.start(1, [Stage("h2d", 0.0)], 3.0)
    copies.start(2, [], 3.0)
    assert copies.next_event_s() == 3.0
    assert copies.advance_to(3.0) == [Completion(1, 3.0, 3.0), Completion(2, 3.0, 3.0)]


def test_bad_calls_are_refused_and_change_nothing() -> None:
    copies = engine()
    with pytest.raises(KeyError):
        copies.start(1, [Stage("nvlink", 1.0)], 0.0)
    with pytest.raises(ValueError, match="negative"):
        copies.start(1, [Stage("h2d", -1.0)], 0.0)
    assert len(copies) == 0
    copies.advance_to(5.0)
    with pytest.raises(ValueError, match="time goes back"):
        copies.start(1, [Stage("h2d", 1.0)], 4.0)
    with pytest.raises(ValueError, match="bandwidth"):
        CopyEngine({"h2d": 0.0})
