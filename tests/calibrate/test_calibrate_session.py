"""Budget, progress and continuation, with a clock that only the measurements move."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from simlora.calibrate.plan import Item
from simlora.calibrate.samples import PROGRESS, SAMPLES, CampaignFolder
from simlora.calibrate.session import Outcome, Session, SkipItemError, parse_budget


class Machine:
    """Measures any item in the time it is expected to take; some fail or are skipped."""

    def __init__(self, slower: float = 1.0) -> None:
        self.now_s, self.slower = 0.0, slower
        self.called: list[str] = []
        self.failing: set[str] = set()
        self.skipping: set[str] = set()
        self.alive = True

    def clock(self) -> float:
        return self.now_s

    def measure(self, item: Item) -> list[dict[str, object]]:
        self.called.append(item.id)
        self.now_s += item.seconds * self.slower
        if item.id in self.skipping:
            raise SkipItemError("no such kernel")
        if item.id in self.failing:
            raise RuntimeError("illegal memory access")
        return [
            {"op": "gemm", "unit": "s", "p20": 1e-3, "p50": 2e-3, "p80": 3e-3, "n": 9},
            {"note": "one point left out"},
        ]


def _items(count: int = 4, seconds: float = 10.0) -> list[Item]:
    return [Item(f"item{number}", "operators", "gemms", number, seconds) for number in range(count)]


def _call(
    folder: Path, machine: Machine, budget_s: float, items: list[Item], where: str = "here", gpus: int = 1
) -> Outcome:
    session = Session(CampaignFolder(folder), budget_s, machine.clock, lambda line: None, where, gpus)
    return session.run(items, machine.measure, lambda: machine.alive)


def test_a_second_call_continues_where_the_first_stopped(tmp_path: Path) -> None:
    machine = Machine()
    first = _call(tmp_path, machine, 25.0, _items())
    assert machine.called == ["item0", "item1"] and not first.complete
    assert first.pending == ("item2", "item3") and first.elapsed_s == 20.0
    second = _call(tmp_path, machine, 25.0, _items())
    assert machine.called == ["item0", "item1", "item2", "item3"] and second.complete and second.finished == 4
    rows = CampaignFolder(tmp_path).rows()
    assert [row["item"] for row in rows] == machine.called and {row["provenance"] for row in rows} == {"here"}


def test_a_complete_campaign_measures_nothing_more(tmp_path: Path) -> None:
    machine = Machine()
    _call(tmp_path, machine, 100.0, _items())
    assert _call(tmp_path, machine, 100.0, _items()).complete and len(machine.called) == 4


def test_smaller_items_fill_what_is_left_of_a_budget(tmp_path: Path) -> None:
    machine = Machine()
    items = [*_items(1), Item("large", "lora", "lora_steps", 1, 100.0), Item("small", "copies", "block_copies", 2, 5.0)]
    assert _call(tmp_path, machine, 20.0, items).pending == ("large",)
    assert machine.called == ["item0", "small"]


def test_an_item_larger_than_the_budget_is_started_all_the_same(tmp_path: Path) -> None:
    machine = Machine()
    assert _call(tmp_path, machine, 5.0, _items(2)).pending == ("item1",)
    assert _call(tmp_path, machine, 5.0, _items(2)).complete


def test_a_slow_machine_starts_fewer_items(tmp_path: Path) -> None:
    machine = Machine(slower=2.0)
    _call(tmp_path, machine, 45.0, _items())  # 20 s each: the third would end at 60 s
    assert machine.called == ["item0", "item1"]


def test_failed_items_come_last_and_are_given_up_after_a_second_try(tmp_path: Path) -> None:
    machine = Machine()
    machine.failing = {"item0"}
    first = _call(tmp_path, machine, 1000.0, _items(3))
    assert first.failed == (("item0", "RuntimeError: illegal memory access"),) and first.pending == ("item0",)
    machine.called.clear()
    second = _call(tmp_path, machine, 1000.0, [*_items(3), Item("new", "copies", "block_copies", 9, 1.0)])
    assert machine.called == ["new", "item0"] and second.complete
    assert all(row["item"] != "item0" for row in CampaignFolder(tmp_path).rows())


def test_a_dead_gpu_ends_the_call(tmp_path: Path) -> None:
    machine = Machine()
    machine.failing, machine.alive = {"item0"}, False
    assert _call(tmp_path, machine, 1000.0, _items(3)).pending == ("item1", "item2", "item0")
    assert machine.called == ["item0"]


def test_skipped_items_are_tried_again_on_another_machine_only(tmp_path: Path) -> None:
    machine = Machine()
    machine.skipping = {"item0"}
    first = _call(tmp_path, machine, 1000.0, _items(2))
    assert first.complete and first.skipped == (("item0", "no such kernel"),)
    machine.skipping, machine.called = set(), []
    assert _call(tmp_path, machine, 1000.0, _items(2)).complete and machine.called == []
    elsewhere = _call(tmp_path, machine, 1000.0, _items(2), where="there")
    assert machine.called == ["item0"] and elsewhere.finished == 2 and elsewhere.skipped == ()


def test_items_for_more_gpus_are_skipped_at_no_cost(tmp_path: Path) -> None:
    machine = Machine()
    items = [*_items(1), Item("pair", "collectives", "collectives", 1, 500.0, gpus=2)]
    outcome = _call(tmp_path, machine, 20.0, items)
    assert outcome.complete and outcome.skipped == (("pair", "needs 2 GPUs, 1 found"),)
    assert _call(tmp_path, machine, 20.0, items, where="larger", gpus=2).finished == 2


def test_a_kill_between_rows_and_progress_leaves_no_half_item(tmp_path: Path) -> None:
    machine = Machine()
    _call(tmp_path, machine, 15.0, _items())
    whole = (tmp_path / SAMPLES).read_text()
    (tmp_path / SAMPLES).write_text(whole + whole.replace("item0", "item1") + '{"op": "ge')
    assert [row["item"] for row in CampaignFolder(tmp_path).rows()] == ["item0"]
    assert (tmp_path / SAMPLES).read_text() == whole
    (tmp_path / PROGRESS).write_text((tmp_path / PROGRESS).read_text() + '{"item": "item1", "sta')
    assert [done.item for done in CampaignFolder(tmp_path).done] == ["item0"]


def test_notes_are_kept_beside_the_samples(tmp_path: Path) -> None:
    _call(tmp_path, Machine(), 100.0, _items(1))
    assert json.loads((tmp_path / PROGRESS).read_text())["notes"] == ["one point left out"]


def test_a_row_that_is_no_sample_fails_its_item(tmp_path: Path) -> None:
    def measure(item: Item) -> list[dict[str, object]]:
        return [{"op": "gemm", "unit": "ms", "p20": 1.0, "p50": 1.0, "p80": 1.0, "n": 3}]

    session = Session(CampaignFolder(tmp_path), 10.0, lambda: 0.0, lambda line: None, "here")
    ((item, reason),) = session.run(_items(1), measure).failed
    assert item == "item0" and "unit: 'ms'" in reason


def test_progress_lines_name_the_item_and_the_budget(tmp_path: Path) -> None:
    machine, lines = Machine(), []
    Session(CampaignFolder(tmp_path), 100.0, machine.clock, lines.append, "here").run(_items(2), machine.measure)
    assert lines[0] == "[  1/2] item0: 1 samples, 10.0 s (expected 10); 10 of 100 s"


@pytest.mark.parametrize(
    ("text", "seconds"), [("9m", 540.0), ("90s", 90.0), ("540", 540.0), ("1.5h", 5400.0), (12, 12.0)]
)
def test_budgets_are_read(text: str, seconds: float) -> None:
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "-3m", "0", "nan", "inf", "ten"])
def test_bad_budgets_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_budget(text)
